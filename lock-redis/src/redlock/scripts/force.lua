-- Takes a lock away. KEYS: the lock, the vote. ARGV: owner, or '' for whoever holds it.
local held = redis.pcall('GET', KEYS[1])
if not held then return 0 end
if ARGV[1] ~= '' and (type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], 1000)
return 1
