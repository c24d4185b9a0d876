-- Gives permits and places back, and lets those who stand in line have what is free.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  milliseconds for which a permit is held from now
-- ARGV[2]  milliseconds for which a place is kept that nobody asks for
-- ARGV[3]  permits of a key to grant at most
-- ARGV[4]  number of keys; then for each: key, how many at once (-1 for a rate), microseconds of a
--   share of the rate, number of jobs that give back, and those jobs
-- Reply    for each key an array of the jobs that got a permit, in their order
local lease, kept, grants_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local deadline, releases, replies = now + lease, {}, {}

local function serve(sets, key, limit)
  local served, held = {}, {}
  local free = math.min(limit - call('ZCARD', sets.held), grants_max)
  if free <= 0 then return served end
  local popped = call('ZPOPMIN', sets.line, free)
  for at = 1, #popped, 2 do
    served[#served + 1] = popped[at]
    held[#held + 1], held[#held + 2] = deadline, popped[at]
  end
  if #served > 0 then
    in_parts('ZADD', sets.held, held)
    in_parts('ZREM', sets.asked, served)
    note(key, math.max(deadline, now + kept))
  end
  return served
end

-- A key that nothing is left of is forgotten at once; what was granted last by a rate matters until
-- its share of the span is over.
local function forget_if_empty(sets, key, share)
  if call('EXISTS', sets.held, sets.line, sets.places) > 0 then return end
  local last = call('HGET', prefix .. 'permits:last', key)
  if last and tonumber(last) + share > now * 1000 then return end
  if last then call('HDEL', prefix .. 'permits:last', key) end
  call('ZREM', prefix .. 'permits', key)
end

call('HLEN', prefix .. 'permits:last')
call('ZCARD', prefix .. 'permits')
local at = 5
for index = 1, tonumber(ARGV[4]) do
  local jobs, count = {}, tonumber(ARGV[at + 3])
  for job = 1, count do jobs[job] = ARGV[at + 3 + job] end
  releases[index] = { ARGV[at], sets_of(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), jobs }
  at = at + 4 + count
end
for index, release in ipairs(releases) do
  local key, sets, limit, share, jobs = unpack(release)
  for _, set in pairs(sets) do in_parts('ZREM', set, jobs) end
  forget_late(sets, kept)
  replies[index] = limit >= 0 and serve(sets, key, limit) or {}
  forget_if_empty(sets, key, share)
end
return replies
