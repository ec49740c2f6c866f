-- Give our lock back, or hand it over to an heir together with the note that was left with it.
--
-- KEYS  1 lock, 2 note
-- ARGV  1 owner, 2 heir, 3 holder of the heir's (JSON), 4 ttl ms, 5 longest ttl ms,
--       6 '1': there is no other server, so that without a note the lock is given back here
-- Answers
--   {1, note}    the lock is the heir's, and here is the note ('owner number note')
--   {2, note}    the note, but the lock is somebody else's
--   {3}          no note here; the lock is the heir's until it is known that there is none
--   {0}          no note; the lock is not ours any more
local owner, heir, holder, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local longest, alone = tonumber(ARGV[5]), ARGV[6] == '1'
if not (owner and owner ~= '' and heir and heir ~= '' and holder and ttl and longest
        and ttl >= 1 and ttl <= longest) then
  return redis.error_reply('ERR celery_redlock: bad arguments for hand_over')
end
local value = redis.call('GET', KEYS[1])
local ours = value and string.sub(value, 1, #owner + 1) == owner .. ' '
local note = redis.call('GET', KEYS[2])
if note and string.sub(note, 1, #owner + 1) ~= owner .. ' ' then note = false end
if note then redis.call('DEL', KEYS[2]) end
if value and not ours then
  if note then return {2, note} end
  return {0}
end
if note or (ours and not alone) then
  redis.call('SET', KEYS[1], heir .. ' 0 ' .. holder, 'PX', ttl)
  if note then return {1, note} end
  return {3}
end
if ours then redis.call('DEL', KEYS[1]) end
return {0}
