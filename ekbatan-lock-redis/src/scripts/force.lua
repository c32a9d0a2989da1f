-- Ends the lease of this owner, and uses up a token.
-- KEYS: lock, fence, wanted   ARGV: channel, key, owner
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, 36) ~= ARGV[3] then
    return 0
end
redis.call('DEL', KEYS[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local token = math.max(now, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
local kept = string.format('%.0f', token - now + 86400000)
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', kept)
redis.call('DEL', KEYS[3])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
