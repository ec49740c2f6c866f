-- Raise the token that our lock carries on this node.
--
-- KEYS  1 lock, 2 counter of this lock, 3 highest token of the node, 4 epoch marker
-- ARGV  1 owner, 2 token, 3 epoch, 4 life of the counter ms
-- Answers 1: it carries the token now;  0: not ours any more, or past the token;
--         {-2, marker}: the epoch differs
local owner, token, life = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
if not (owner and owner ~= '' and token and life and life >= 1 and token >= 1
        and token < 9007199254740992) then
  return redis.error_reply('ERR celery_redlock: bad arguments for raise')
end
local marker = redis.call('GET', KEYS[4])
if marker ~= ARGV[3] then return {-2, marker or ''} end
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #owner + 1) ~= owner .. ' ' then return 0 end
local stored, holder = string.match(value, ' (%d+) (.*)$')
if token < tonumber(stored) then return 0 end

local text = string.format('%.0f', token)
redis.call('SET', KEYS[1], owner .. ' ' .. text .. ' ' .. holder, 'KEEPTTL')
local counter = tonumber(redis.call('GET', KEYS[2]) or '0')
if token > counter then counter = token end
redis.call('SET', KEYS[2], string.format('%.0f', counter), 'PX', life)
if token > tonumber(redis.call('GET', KEYS[3]) or '0') then redis.call('SET', KEYS[3], text) end
return 1
