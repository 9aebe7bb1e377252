-- Begins all scripts that move the lock. Keys of every such script:
-- the lock, the queue, the waiters, the node-wide fence mark.
local lock, queue, waiters, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
