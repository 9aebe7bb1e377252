-- KEYS: those of grant.lua. ARGV: the owner that must hold it or '', may pause.
-- Answers {freed, look again in ms or -1}.
local expected, may_pause = ARGV[1], ARGV[2] == '1'
local holder = value_of(lock)
if holder == false or (expected ~= '' and holder ~= expected) then return {0, -1} end
local now = clock()
local fence = next_fence(now)
local owner, client = string.match(redis.call('GET', hold) or '', '^%d+|(%x+)|%d+|(%x+)|')
redis.call('DEL', lock, hold)
redis.call('SET', mark, fence)
if type(holder) == 'string' then drop_waiter(holder) end
local _, again = pass_on(now, nil, may_pause)
if owner == holder then redis.pcall('PUBLISH', 'distlock:' .. client, 'l' .. owner) end
return {1, again}
