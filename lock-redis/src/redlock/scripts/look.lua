-- What a node knows about a lock, for people. KEYS: the lock, the vote.
-- Answers {value or false, ms left, fence, since, label, now} | {false}
local held = value_of(KEYS[1])
if not held then return {false} end
if type(held) ~= 'string' then held = '' end
local vote = redis.call('HMGET', KEYS[2], 'counter', 'since', 'label', 'fence')
local fence = (vote[4] or '') ~= '' and vote[4] or vote[1] or ''
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000000 + t[2])
return {held, redis.call('PTTL', KEYS[1]), fence, vote[2] or '', vote[3] or '', now}
