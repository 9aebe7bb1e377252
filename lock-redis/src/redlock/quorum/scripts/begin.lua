-- Begins a quarantine or a bootstrap.
-- KEYS: the node. ARGV: state, nonce, quorum, boot, then what the caller has seen: process, flushes, and
-- the nonce of a marker of this process ('' for none).
-- A request that arrives after another restart, flush or change of the marker does nothing.
local here = process()
local stats = redis.call('INFO', 'commandstats')
local flushes = 0
for _, command in ipairs({'flushall', 'flushdb', 'swapdb'}) do
  flushes = flushes + (tonumber(string.match(stats, 'cmdstat_' .. command .. ':calls=(%d+)') or nil) or 0)
end
if here ~= ARGV[5] or string.format('%.0f', flushes) ~= ARGV[6] then return 0 end
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'nonce')
local current = node[2] and node[1] == here and node[3] or ''
if current ~= ARGV[7] then return 0 end
local t = redis.call('TIME')
redis.call('HSET', KEYS[1], 'run_id', here, 'state', ARGV[1], 'nonce', ARGV[2], 'quorum', ARGV[3],
  'boot', ARGV[4], 'since', string.format('%.0f', t[1] * 1000000 + t[2]))
return 1
