-- Tries every command that the other scripts use. KEYS: a string, a sorted set, a hash, the mark.
-- ARGV: the channel of this client. Answers what was refused, each with the server's reason.
local refused = {}
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = select(1, ...) .. ': ' .. answer.err
  end
end
try('DEL', KEYS[1], KEYS[2], KEYS[3])
try('TIME')
try('EXISTS', KEYS[1])
try('GET', KEYS[4])
try('SET', KEYS[1], '1', 'NX', 'PX', 1000)
try('PEXPIRE', KEYS[1], 1000)
try('PTTL', KEYS[1])
try('ZADD', KEYS[2], 1, 'a')
try('PEXPIRE', KEYS[2], 1000)
try('ZSCORE', KEYS[2], 'a')
try('ZRANK', KEYS[2], 'a')
try('ZCARD', KEYS[2])
try('ZRANGE', KEYS[2], 0, 0)
try('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
try('ZREM', KEYS[2], 'a')
try('HSET', KEYS[3], 'a', '1')
try('PEXPIRE', KEYS[3], 1000)
try('HGET', KEYS[3], 'a')
try('HMGET', KEYS[3], 'a', 'b')
try('HEXISTS', KEYS[3], 'a')
try('HDEL', KEYS[3], 'a')
try('PUBLISH', ARGV[1], '')
try('DEL', KEYS[1], KEYS[2], KEYS[3])
return refused
