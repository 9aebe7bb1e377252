-- Raises the counter of a lock, only for its holder.
-- KEYS: the node, the lock, the vote. ARGV: quorum, owner, value, process.
-- Answers {1, counter, mark, -1} | {0, -1, '', mark} | {-1, why} | {-2, quorum}
local value = tonumber(ARGV[3])
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum', 'mark')
local refused = refusal(node)
if refused then return refused end
local counter = tonumber(redis.call('HGET', KEYS[3], 'counter') or nil)
local mark = tonumber(node[4] or '0')
if not counter or not is_mine(value_of(KEYS[2]), ARGV[2]) then return {0, -1, '', mark} end
if value > counter and value <= 9007199254740991 then
  counter = value
  mark = math.max(mark, counter)
  redis.call('HSET', KEYS[1], 'mark', digits(mark))
  -- An older fence of the same owner ends with that.
  redis.call('HSET', KEYS[3], 'counter', digits(counter), 'fence', '')
end
return {1, counter, mark, -1}
