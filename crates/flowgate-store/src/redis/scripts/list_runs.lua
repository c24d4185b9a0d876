-- A page of the runs that match a query, the latest started first, or their number. It looks at a
-- bounded number of runs and says where to go on.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  `list` or `count`
-- ARGV[2]  runs at most
-- ARGV[3]  earliest start; empty for any
-- ARGV[4]  start before which to begin; empty for any
-- ARGV[5]  start of the run after which to begin; empty for none
-- ARGV[6]  that run
-- ARGV[7]  statuses, each between commas; empty for any
-- ARGV[8]  number of indexes that a run must be in; then their names
-- Reply    start and id of the run to go on after (empty at the end), number of matches; then for
--   each run an array: record, started, updated, ended, whether its events are removed
local LOOK_MAX = 2000
local is_count, limit, since, statuses = ARGV[1] == 'count', tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[7]

-- The index with the fewest runs leads; a run must be in the others too.
local lead, others, fewest = nil, {}, nil
for at = 9, 8 + ARGV[8] do
  local key = prefix .. ARGV[at]
  local size = call('ZCARD', key)
  if not fewest or size < fewest then
    if lead then others[#others + 1] = lead end
    lead, fewest = key, size
  else
    others[#others + 1] = key
  end
end

-- How many runs of the index come before the place to begin at.
local rank = 0
if ARGV[4] ~= '' then rank = call('ZCOUNT', lead, ARGV[4], '+inf') end
if ARGV[5] ~= '' then
  local low = call('ZCOUNT', lead, '(' .. ARGV[5], '+inf')
  local high = low + call('ZCOUNT', lead, ARGV[5], ARGV[5])
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZREVRANGE', lead, middle, middle)[1] >= ARGV[6] then
      low = middle + 1
    else
      high = middle
    end
  end
  rank = math.max(rank, low)
end

local replies, looked, found = { '', '', 0 }, 0, 0
while found < limit and looked < LOOK_MAX do
  local page = call('ZREVRANGE', lead, rank, rank + 99, 'WITHSCORES')
  for at = 1, #page, 2 do
    local id, score = page[at], tonumber(page[at + 1])
    if since and score < since then
      replies[3] = found
      return replies
    end
    looked, rank = looked + 1, rank + 1
    local is_match, run_key = true, prefix .. 'run:' .. id
    for _, key in ipairs(others) do is_match = is_match and call('ZSCORE', key, id) end
    if is_match and statuses ~= '' then
      local status = call('HGET', run_key, 'status')
      is_match = status and string.find(statuses, ',' .. status .. ',', 1, true)
    end
    if is_match then
      found = found + 1
      if not is_count then
        local row = call('HMGET', run_key, 'record', 'started_at', 'version', 'ended_at',
          'events_removed')
        -- A run may be swept between the look at an index and the look at it.
        row[3] = row[3] and updated_at(run_key, row[3])
        replies[#replies + 1] = row
      end
    end
    if found >= limit or looked >= LOOK_MAX then
      replies[1], replies[2] = format('%d', score), id
      break
    end
  end
  if #page < 200 and replies[1] == '' then break end
end
replies[3] = found
return replies
