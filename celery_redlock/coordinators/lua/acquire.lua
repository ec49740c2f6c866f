-- Take the lock on this node.
--
-- KEYS  1 lock, 2 grave of this owner; with a token also: 3 counter of this lock,
--       4 highest token of the node, 5 epoch marker, 6 resting marker
-- ARGV  1 owner, 2 ttl ms, 3 longest ttl ms, 4 holder (JSON);
--       with a token also: 5 epoch, 6 floor, 7 life of the counter ms
-- Answers
--   {1, token, mine}        the lock is ours (mine = 1: it was before)
--   {0, value, left ms}     somebody else's
--   {-1}                    this owner was given up before its request arrived
--   {-2, marker}            the epoch differs
--   {-3, left ms}           the node does not vote yet
local owner, ttl, longest, holder = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local fenced = #KEYS > 2
local floor, life, base = 0, 0, 0
if not (owner and owner ~= '' and ttl and longest and ttl >= 1 and ttl <= longest and holder) then
  return redis.error_reply('ERR celery_redlock: bad arguments for acquire')
end
if fenced then
  floor, life = tonumber(ARGV[6]), tonumber(ARGV[7])
  if not (floor and life and life >= 1 and floor < 9007199254740992) then
    return redis.error_reply('ERR celery_redlock: bad arguments for a fenced acquire')
  end
  local marker = redis.call('GET', KEYS[5])
  if marker ~= ARGV[5] then return {-2, marker or ''} end
  base = tonumber(string.match(marker, '(%d+)$')) -- no token of an earlier epoch is above it
  local resting = redis.call('PTTL', KEYS[6])
  if resting > 0 then return {-3, resting} end
end

local value = redis.call('GET', KEYS[1])
if value then
  if string.sub(value, 1, #owner + 1) == owner .. ' ' then
    redis.call('PEXPIRE', KEYS[1], ttl)
    return {1, string.match(value, ' (%d+) '), 1}
  end
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > longest then -- a clock that stepped back must not lengthen a lock
    redis.call('PEXPIRE', KEYS[1], longest)
    left = longest
  end
  return {0, value, left}
end
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end

local token = '0'
if fenced then
  local highest = tonumber(redis.call('GET', KEYS[4]) or '0')
  local next = math.max(tonumber(redis.call('GET', KEYS[3]) or highest), base) + 1
  local time = redis.call('TIME')
  if floor <= (tonumber(time[1]) + 3600) * 1000000 and floor > next then next = floor end
  if next >= 9007199254740992 then -- 2^53: from here on Lua's numbers skip some
    return redis.error_reply('ERR celery_redlock: the fencing tokens of this node are used up')
  end
  token = string.format('%.0f', next)
  redis.call('SET', KEYS[3], token, 'PX', life)
  if next > highest then redis.call('SET', KEYS[4], token) end
end
redis.call('SET', KEYS[1], owner .. ' ' .. token .. ' ' .. holder, 'PX', ttl)
return {1, token, 0}
