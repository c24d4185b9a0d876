-- What the scripts about permits share, after `shared.lua`. Of each key there are sorted sets of
-- jobs, each named `RUN:STEP`:
--   permits:held:KEY    who holds one, by when that ends
--   permits:line:KEY    who stands in line, by a number that only grows
--   permits:asked:KEY   the same, by when they asked last
--   permits:places:KEY  who has a place of a rate that is still to come or that nobody has come for,
--                       by that place, in microseconds
-- The hash `permits:last` has the last place of each key that was granted. The set `permits` has
-- each key by when nothing of it matters any more.
local now = clock(call('HGET', meta_key, 'clock_ms'))
local PLACE_US_MAX = 9e15

-- The sets of a key. One of another type fails here, before anything is written.
local function sets_of(key)
  local sets = {}
  for _, name in ipairs({ 'held', 'line', 'asked', 'places' }) do
    sets[name] = prefix .. 'permits:' .. name .. ':' .. key
    call('ZCARD', sets[name])
  end
  return sets
end

-- Forgets whose time is over; `kept` is for how long a place is kept that nobody asks for.
local function forget_late(sets, kept)
  call('ZREMRANGEBYSCORE', sets.held, '-inf', now)
  call('ZREMRANGEBYSCORE', sets.places, '-inf', (now - kept) * 1000)
  local silent = call('ZRANGEBYSCORE', sets.asked, '-inf', now - kept)
  in_parts('ZREM', sets.line, silent)
  in_parts('ZREM', sets.asked, silent)
end

-- Something of the key matters until then.
local function note(key, until_ms)
  call('ZADD', prefix .. 'permits', 'GT', format('%d', math.ceil(until_ms)), key)
end

