-- Extends the term of a key, if the caller still owns it. A call that comes late, after a later one,
-- must not shorten the term.
-- KEYS: lock   ARGV: owner, term, 'exactly' if the term may become shorter
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, 36) == ARGV[1] then
    if ARGV[3] ~= 'exactly' and redis.call('PTTL', KEYS[1]) >= tonumber(ARGV[2]) then
        return 1
    end
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
