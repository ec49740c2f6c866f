-- Take the lock on this node.
--
-- KEYS  1 lock, 2 grave of this owner; with a token also: 3 counter of this lock,
--       4 highest token of the node, 5 epoch marker, 6 resting marker
-- ARGV  1 owner, 2 ttl ms, 3 longest ttl ms, 4 holder (JSON);
--       with a token also: 5 epoch, 6 floor, 7 life of the counter ms
-- Answers
--   1, or the token as text  the lock is ours
--   {1, token}               it was ours before
--   {0, value, left ms}      it is somebody else's
--   {-1}                     this owner was given up before its request arrived
--   {-2, marker}             the epoch differs
--   {-3, left ms}            the node does not vote yet
local owner, ttl, longest, holder = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if not (owner and owner ~= '' and ttl and longest and ttl >= 1 and ttl <= longest and holder) then
  return redis.error_reply('ERR celery_redlock: bad arguments for acquire')
end
local fenced = KEYS[3] ~= nil
local floor, life = 0, 0
local stored = redis.call('MGET', unpack(KEYS))
if fenced then
  floor, life = tonumber(ARGV[6]), tonumber(ARGV[7])
  if not (floor and life and life >= 1 and floor < 9007199254740992) then
    return redis.error_reply('ERR celery_redlock: bad arguments for a fenced acquire')
  end
  if stored[5] ~= ARGV[5] then return {-2, stored[5] or ''} end
  if stored[6] then return {-3, redis.call('PTTL', KEYS[6])} end
end

local value = stored[1]
if value then
  if string.sub(value, 1, #owner + 1) == owner .. ' ' then
    redis.call('PEXPIRE', KEYS[1], ttl)
    return {1, string.match(value, ' (%d+) ')}
  end
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > longest then -- a clock that stepped back must not lengthen a lock
    redis.call('PEXPIRE', KEYS[1], longest)
    left = longest
  end
  return {0, value, left}
end
if stored[2] then return {-1} end

if not fenced then
  redis.call('SET', KEYS[1], owner .. ' 0 ' .. holder, 'PX', ttl)
  return 1
end
local highest = tonumber(stored[4] or '0')
-- The epoch ends with its base: no token of an earlier epoch is above that.
local base = tonumber(string.match(ARGV[5], '%d+$'))
local next = math.max(tonumber(stored[3] or highest), base) + 1
if floor > next and floor <= (tonumber(redis.call('TIME')[1]) + 3600) * 1000000 then
  next = floor
end
if next >= 9007199254740992 then -- 2^53: from here on Lua's numbers skip some
  return redis.error_reply('ERR celery_redlock: the fencing tokens of this node are used up')
end
local token = string.format('%.0f', next)
redis.call('SET', KEYS[3], token, 'PX', life)
if next > highest then redis.call('SET', KEYS[4], token) end
redis.call('SET', KEYS[1], owner .. ' ' .. token .. ' ' .. holder, 'PX', ttl)
return token
