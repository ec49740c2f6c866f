-- Put a lock back on a node that has lost it, after a majority was proven to hold it.
--
-- KEYS  1 lock, 2 grave of this owner; with a token also: 3 counter of this lock,
--       4 highest token of the node, 5 epoch marker
-- ARGV  1 owner, 2 ttl ms, 3 longest ttl ms, 4 value; with a token also: 5 epoch, 6 token,
--       7 life of the counter ms
-- Answers 1: done;  0: not needed, or not allowed
local owner, ttl, longest, value = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local fenced = #KEYS > 2
local token, life = 0, 0
if not (owner and owner ~= '' and value and ttl and longest and ttl >= 1 and ttl <= longest) then
  return redis.error_reply('ERR celery_redlock: bad arguments for heal')
end
if fenced then
  token, life = tonumber(ARGV[6]), tonumber(ARGV[7])
  if not (token and life and life >= 1 and token >= 1 and token < 9007199254740992) then
    return redis.error_reply('ERR celery_redlock: bad arguments for a fenced heal')
  end
  if redis.call('GET', KEYS[5]) ~= ARGV[5] then return 0 end
end
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
if fenced then
  local counter = tonumber(redis.call('GET', KEYS[3]) or '0')
  if token > counter then counter = token end
  redis.call('SET', KEYS[3], string.format('%.0f', counter), 'PX', life)
  if token > tonumber(redis.call('GET', KEYS[4]) or '0') then
    redis.call('SET', KEYS[4], string.format('%.0f', token))
  end
end
redis.call('SET', KEYS[1], value, 'PX', ttl)
return 1
