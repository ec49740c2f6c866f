-- Give our lock back on this node.
--
-- KEYS  1 lock, 2 grave of this owner
-- ARGV  1 owner, 2 life of the grave ms (0: none is needed, our acquire can't come later),
--       3 ms that a missing lock is kept from everybody, since our acquire may come within
--         that time and looks at no grave (0 or missing: not at all)
-- Answers 1: it was ours;  0: it was not
local owner, life, block = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or '0')
if not (owner and owner ~= '' and life and life >= 0 and block and block >= 0) then
  return redis.error_reply('ERR celery_redlock: bad arguments for release')
end
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #owner + 1) == owner .. ' ' then
  redis.call('DEL', KEYS[1])
  return 1
end
if life > 0 then redis.call('SET', KEYS[2], '', 'PX', life) end
if block > 0 and not value then redis.call('SET', KEYS[1], '- 0 {}', 'PX', block) end
return 0
