-- What a node reports about itself. KEYS: the node.
-- Answers {process, uptime in s, flushes, now in µs, the marker's process, state, quorum, nonce, since, boot, mark, policy}
local server = redis.call('INFO', 'server')
local stats = redis.call('INFO', 'commandstats')
local flushes = 0
for _, command in ipairs({'flushall', 'flushdb', 'swapdb'}) do
  flushes = flushes + (tonumber(string.match(stats, 'cmdstat_' .. command .. ':calls=(%d+)') or nil) or 0)
end
local t = redis.call('TIME')
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum', 'nonce', 'since', 'boot', 'mark')
local answer = {
  process(),
  string.match(server, 'uptime_in_seconds:(%d+)') or '0',
  string.format('%.0f', flushes),
  string.format('%.0f', t[1] * 1000000 + t[2]),
}
for i = 1, 7 do answer[#answer + 1] = node[i] or '' end
answer[#answer + 1] = string.match(redis.call('INFO', 'memory'), 'maxmemory_policy:([%w-]+)') or ''
return answer
