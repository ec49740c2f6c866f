-- Leave a note with a lock that somebody holds, in the place of an older one.
--
-- KEYS  1 lock, 2 note
-- ARGV  1 owner of the lock, 2 number of the note, 3 note, 4 life of the note ms
-- Answers 1: it is there, or a newer one is;  0: the lock isn't held by this owner
local owner, number, note, life = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if not (owner and owner ~= '' and number and number >= 0 and number < 9007199254740992 and note
        and life and life >= 1) then
  return redis.error_reply('ERR celery_redlock: bad arguments for leave')
end
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #owner + 1) ~= owner .. ' ' then return 0 end
local there = redis.call('GET', KEYS[2])
if there and string.sub(there, 1, #owner + 1) == owner .. ' ' then
  if tonumber(string.match(there, ' (%d+) ')) >= number then return 1 end
end
redis.call('SET', KEYS[2], owner .. ' ' .. string.format('%.0f', number) .. ' ' .. note, 'PX', life)
return 1
