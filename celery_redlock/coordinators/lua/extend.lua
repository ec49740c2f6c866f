-- Set the remaining life of our lock on this node.  Creates nothing, deletes nothing.
--
-- KEYS  1 lock
-- ARGV  1 owner, 2 ttl ms, 3 longest ttl ms
-- Answers 1: done;  0: there is no lock;  -1: it is somebody else's
local owner, ttl, longest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not (owner and owner ~= '' and ttl and longest and ttl >= 1 and ttl <= longest) then
  return redis.error_reply('ERR celery_redlock: bad arguments for extend')
end
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if string.sub(value, 1, #owner + 1) ~= owner .. ' ' then return -1 end
redis.call('PEXPIRE', KEYS[1], ttl)
return 1
