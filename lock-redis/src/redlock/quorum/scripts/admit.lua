-- Admits a node, if it is still in the very quarantine (or bootstrap) that the caller has seen.
-- KEYS: the node. ARGV: nonce, seed, ms that must have passed since it began, boot.
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'nonce', 'since', 'mark')
if node[1] ~= process() or node[3] ~= ARGV[1] then return 0 end
if node[2] ~= 'quarantine' and node[2] ~= 'boot' then return 0 end
local t = redis.call('TIME')
if t[1] * 1000000 + t[2] - tonumber(node[4]) < ARGV[3] * 1000 then return 0 end
local mark = math.max(tonumber(node[5] or '0'), tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'state', 'admitted', 'boot', ARGV[4], 'mark', string.format('%.0f', mark))
return 1
