-- Tries every command that the other scripts use. KEYS: the node, a string, a hash, a sorted set.
-- ARGV: the channel of this client. Answers what was refused, each with the server's reason.
local refused = {}
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = select(1, ...) .. ': ' .. answer.err
  end
end
try('DEL', KEYS[2], KEYS[3], KEYS[4])
try('TIME')
try('INFO', 'server')
try('HMGET', KEYS[1], 'run_id', 'state')
try('SET', KEYS[2], '1', 'PX', 1000)
try('PEXPIRE', KEYS[2], 1000)
try('GET', KEYS[2])
try('PTTL', KEYS[2])
try('HSET', KEYS[3], 'a', '1')
try('PEXPIRE', KEYS[3], 1000)
try('HGET', KEYS[3], 'a')
try('ZADD', KEYS[4], 1, 'a')
try('PEXPIRE', KEYS[4], 1000)
try('ZRANGE', KEYS[4], 0, 0)
try('ZREM', KEYS[4], 'a')
try('PUBLISH', ARGV[1], '')
try('DEL', KEYS[2], KEYS[3], KEYS[4])
return refused
