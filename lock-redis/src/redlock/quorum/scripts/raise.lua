-- Raises the counter of a lock, only for its holder.
-- KEYS: the node, the lock. ARGV: quorum, owner, value, process.
-- Answers {1, counter, mark, -1} | {0, -1, '', mark} | {-1, why} | {-2, quorum}
local value = tonumber(ARGV[3])
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum', 'mark')
local refused = refusal(node)
if refused then return refused end
local mark = tonumber(node[4] or '0')
local vote = vote_of(value_of(KEYS[2]), ARGV[2])
if not vote then return {0, -1, '', mark} end
local counter = tonumber(vote[COUNTER])
if value > counter and value <= 9007199254740991 then
  counter = value
  mark = math.max(mark, counter)
  redis.call('HSET', KEYS[1], 'mark', digits(mark))
  -- An older fence of the same owner ends with that.
  vote[COUNTER], vote[ADOPTED] = digits(counter), ''
  write_vote(KEYS[2], ARGV[2], vote, 'KEEPTTL')
end
return {1, counter, mark, -1}
