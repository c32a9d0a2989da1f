-- Ends the lease that was seen, uses up a token, and passes the key on.
-- KEYS: lock, fence, waiters
-- ARGV: channel, key, `owner|token|` of the lease, how long the next process may take to confirm, how long a place lasts
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[3]) ~= ARGV[3] then
    return 0
end
next_token(KEYS[2], clock())
pass_on(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[4], ARGV[5])
return 1
