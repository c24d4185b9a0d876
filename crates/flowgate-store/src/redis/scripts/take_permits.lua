-- Asks for permits, each by itself.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  milliseconds for which a permit is held from now
-- ARGV[2]  milliseconds for which a place is kept that nobody asks for
-- ARGV[3]  number of asks; then for each: key, how many at once (-1 for a rate), microseconds of a
--   share of the rate, job
-- Reply    for each ask two numbers: 0, 0 (granted) | 1, its place in line | 2, when its place is
local lease, kept = tonumber(ARGV[1]), tonumber(ARGV[2])
local deadline, replies, sets_of_keys = now + lease, {}, {}

local function grant(sets, key, job)
  call('ZADD', sets.held, 'GT', deadline, job)
  note(key, math.max(deadline, now + kept))
  return 0, 0
end

local function at_once(sets, key, limit, job)
  local rank = call('ZRANK', sets.line, job)
  local place = (rank or call('ZCARD', sets.line)) + 1
  if place <= limit - call('ZCARD', sets.held) then
    if rank then
      call('ZREM', sets.line, job)
      call('ZREM', sets.asked, job)
    end
    return grant(sets, key, job)
  end
  if not rank then call('ZADD', sets.line, call('HINCRBY', meta_key, 'permit', 1), job) end
  call('ZADD', sets.asked, now, job)
  note(key, now + kept)
  return 1, place
end

local function by_rate(sets, key, share, job)
  local last = tonumber(call('HGET', prefix .. 'permits:last', key) or 0)
  local found = tonumber(call('ZSCORE', sets.places, job) or 0)
  local place = found
  if place == 0 then
    local farthest = call('ZRANGE', sets.places, -1, -1, 'WITHSCORES')[2]
    local before = math.max(last, tonumber(farthest or 0))
    place = math.min(math.max(now * 1000, before > 0 and before + share or 0), PLACE_US_MAX)
  end
  note(key, math.max(place / 1000 + kept, (place + share) / 1000))
  if place > now * 1000 then
    if found == 0 then call('ZADD', sets.places, format('%d', place), job) end
    return 2, math.ceil(place / 1000)
  end
  call('ZREM', sets.places, job)
  call('HSET', prefix .. 'permits:last', key, format('%d', math.max(last, place)))
  return grant(sets, key, job)
end

call('HLEN', prefix .. 'permits:last')
call('ZCARD', prefix .. 'permits')
for at = 4, 4 * ARGV[3], 4 do
  sets_of_keys[ARGV[at]] = sets_of_keys[ARGV[at]] or sets_of(ARGV[at])
end
for _, sets in pairs(sets_of_keys) do forget_late(sets, kept) end
for at = 4, 4 * ARGV[3], 4 do
  local key, limit, share, job = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  local sets, outcome, number = sets_of_keys[key]
  if call('ZSCORE', sets.held, job) then
    outcome, number = grant(sets, key, job)
  elseif limit >= 0 then
    outcome, number = at_once(sets, key, limit, job)
  else
    outcome, number = by_rate(sets, key, share, job)
  end
  replies[#replies + 1], replies[#replies + 2] = outcome, number
end
return replies
