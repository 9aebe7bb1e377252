-- Takes a lock away, wakes the first two who wait for it, and tells the holder. KEYS: the lock, the vote, the waiters.
-- ARGV: owner, or '' for whoever holds it; payload.
local held = value_of(KEYS[1])
if not held then return 0 end
if ARGV[1] ~= '' and (type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1]) then return 0 end
local channel = redis.call('HGET', KEYS[2], 'channel')
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], 1000)
wake(KEYS[3], ARGV[2])
local owner = type(held) == 'string' and string.match(held, '^(%x+)%.')
if owner and channel then redis.pcall('PUBLISH', channel, '0\30' .. owner) end
return 1
