-- What a node knows about a lock, for people. KEYS: the lock, the vote.
-- Answers {mark, ms left, first fence, since, label, now} | {false}. The mark is that of the value up to its first
-- dot, which is the owner.
local held = value_of(KEYS[1])
if not held then return {false} end
local mark = type(held) == 'string' and mark_of(string.match(held, '^[^.]*')) or ''
local vote = redis.call('HMGET', KEYS[2], 'counter', 'since', 'label', 'fence', 'fences')
local last = tonumber((vote[4] or '') ~= '' and vote[4] or vote[1] or nil)
local fence = last and string.format('%.0f', last - tonumber(vote[5] or '1') + 1) or ''
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
return {mark, redis.call('PTTL', KEYS[1]), fence, vote[2] or '', vote[3] or '', now}
