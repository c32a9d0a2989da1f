-- Extends the term of a key, if the caller still owns it.
-- KEYS: lock   ARGV: owner, term
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, 36) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
