-- The processes that wait for a key, in the order in which they came: `process=until;` for each.
-- A process renews its place while it waits; the place of one that does not is over.

local function clock()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function living(key, now)
    local places = {}
    for process, till in string.gmatch(redis.call('GET', key) or '', '([^=;]+)=(%d+);') do
        if tonumber(till) > now then
            places[#places + 1] = {process, till}
        end
    end
    return places
end

local function store(key, places, lasts)
    local text = {}
    for n, place in ipairs(places) do
        text[n] = place[1] .. '=' .. place[2] .. ';'
    end
    if #text == 0 then
        redis.call('DEL', key)
    else
        redis.call('SET', key, table.concat(text), 'PX', lasts)
    end
end

-- Gives the process a place behind the others, or renews its place.
local function wait_in(key, process, now, lasts)
    local places = living(key, now)
    local till = string.format('%.0f', now + tonumber(lasts))
    local mine
    for _, place in ipairs(places) do
        if place[1] == process then
            mine = place
        end
    end
    if mine then
        mine[2] = till
    else
        places[#places + 1] = {process, till}
    end
    store(key, places, lasts)
end

local function leave(key, process, now, lasts)
    local places, others = living(key, now), {}
    for _, place in ipairs(places) do
        if place[1] ~= process then
            others[#others + 1] = place
        end
    end
    if #others ~= #places then
        store(key, others, lasts)
    end
end

-- The next token: at least the clock, so that tokens grow even if the last one was lost. The last
-- one is kept until a day after the time that it stands for; later the clock alone is greater.
local function next_token(fence, now)
    local token = math.max(now, tonumber(redis.call('GET', fence) or '0') + 1)
    local kept = string.format('%.0f', token - now + 86400000)
    redis.call('SET', fence, string.format('%.0f', token), 'PX', kept)
    return token
end

local function value(owner, token, now, holder)
    return owner .. '|' .. string.format('%.0f', token) .. '|' .. string.format('%.0f', now)
        .. '|' .. holder
end

-- Ends the lease. The first process that waits becomes the owner, with the next token, for a short
-- time in which it takes the key; the message tells it. Returns 1 if there is one.
local function pass_on(lock, fence, waiters, channel, key, confirm, lasts)
    local now = clock()
    local places = living(waiters, now)
    local first = table.remove(places, 1)
    if not first then
        redis.call('DEL', lock, waiters)
        return 0
    end
    store(waiters, places, lasts)
    local held = value(first[1], next_token(fence, now), now, 'the next process')
    redis.call('SET', lock, held, 'PX', confirm)
    redis.call('PUBLISH', channel, first[1] .. ' ' .. key)
    return 1
end
