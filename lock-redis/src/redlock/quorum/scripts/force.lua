-- Takes a lock away, wakes the first two who wait for it, and tells the holder. KEYS: the lock, the vote, the waiters.
-- ARGV: '=' and the mark that the lock must have (see look.lua), or 'any'; payload.
local held = value_of(KEYS[1])
if not held then return 0 end
local mark = type(held) == 'string' and mark_of(string.match(held, '^[^.]*')) or ''
if ARGV[1] ~= 'any' and ARGV[1] ~= '=' .. mark then return 0 end
local channel = redis.call('HGET', KEYS[2], 'channel')
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], 1000)
wake(KEYS[3], ARGV[2])
local owner = type(held) == 'string' and string.match(held, '^(%x+)%.')
if owner and channel then redis.pcall('PUBLISH', channel, '0\30' .. owner) end
return 1
