-- Change the epoch marker of this node, if it is what the caller has read.
--
-- KEYS  1 epoch marker, 2 highest token of the node, 3 resting marker
-- ARGV  1 new marker, 2 marker that was read ('' if there was none),
--       3 the least that the highest token is raised to, 4 ms that the node rests from now on
-- Answers {1, highest}: done, or done before;  {0, marker}: it is another one
local marker, read, least, rest = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not (marker and marker ~= '' and read and least and rest and least >= 0 and rest >= 0
        and least < 9007199254740992) then
  return redis.error_reply('ERR celery_redlock: bad arguments for mark')
end
local present = redis.call('GET', KEYS[1]) or ''
local highest = tonumber(redis.call('GET', KEYS[2]) or '0')
if present ~= marker then
  if present ~= read then return {0, present} end
  if least > highest then
    highest = least
    redis.call('SET', KEYS[2], string.format('%.0f', highest))
  end
  if rest > 0 then redis.call('SET', KEYS[3], '', 'PX', rest) end
  redis.call('SET', KEYS[1], marker)
end
return {1, string.format('%.0f', highest)}
