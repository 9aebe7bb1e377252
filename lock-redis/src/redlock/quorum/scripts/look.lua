-- What a node shows of locks to a look. KEYS: the node, then the locks. ARGV: quorum, process.
-- Answers {1, mark, for each lock {mark of the hold, last fence, number of fences, fence at which it was adopted or '', label}
-- | {mark of the hold} of another kind of client | {}} | {-1, why} | {-2, quorum}.
local node = redis.call('HMGET', KEYS[1], 'run_id', 'state', 'quorum', 'mark')
local refused = refusal(node)
if refused then return refused end
local out, values = {1, node[4] or '0'}, values_of(KEYS, 2)
for k = 2, #KEYS do
  local held, shown = values[k], {}
  if held then
    local owner = owner_of(held)
    local vote = owner and vote_of(held, owner)
    shown = {mark_of_hold(held)}
    if vote then shown = {shown[1], vote[COUNTER], vote[FENCES], vote[ADOPTED], vote[LABEL]} end
  end
  out[k + 1] = shown
end
return out
