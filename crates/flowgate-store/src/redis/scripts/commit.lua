-- Applies each commit of a batch or refuses it, in order. All that is written is written at the
-- end, so a key of a wrong type fails the call before it wrote.
--
-- A step of a flow is one HMGET and one HSET here, and texts that the caller has made or that are
-- the same for the whole batch: the time of the server goes into the making of texts.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  instance that takes jobs by hand-off; empty for none
-- ARGV[2]  milliseconds of its leases
-- ARGV[3]  position that the caller knows to be written
-- ARGV[4]  channel for hints
-- ARGV[5]  number of commits
-- ARGV[6]  number of events in all
-- ARGV[7]  row of the feed if all are applied: `ID:SEQ:COUNT:OFFSET` of each, with commas between;
--   then for each commit:
--   key of the run, shape, version before (0 for a start), version after, record, row of the log;
--   for each guard its token; for each job that is put `queue;job`;
--   for a start its indexes as JSON, and then one by one.
--   A shape reads `status;steps;guards;changes;indexes;several;gate`, and few differ in a batch.
--   Steps is their number where the run starts, ends or is pinned anew, else empty; guards and changes have a comma
--   after each: a guard is a step, a change `rSTEP` (remove), `lSTEP DUE/ATTEMPT` (later) or
--   `pSTEP DUE/ATTEMPT` (put; with `!` to be handed off), without the space, where DUE is `+` and
--   a span or `@` and a time; indexes is their number; several is `s` where the call has more than
--   one commit of the run; gate is `GENERATION/FLOW` where the run starts, else empty.
-- Reply    time, deadline and token of what was handed off, 1 if the known position is not
--   written, last position; then for each commit: 0 (applied, and handed off what was to be) | 1
--   (the run is there) | 2 (it is at another version) | or an array: 0, and each step that was
--   handed off | 3 (a lease is lost), step | 4 (applied before), record, and step, token, attempt,
--   deadline, job of each lease of its hand-off | 5 (the gate is at another generation), that
--   generation, whether it holds what starts (1, 0)
local meta = call('HMGET', meta_key, 'clock_ms', 'position', 'token', 'partitions', 'partition',
  'due_wanted_until', 'feed_wanted_until')
local now, us = clock(meta[1])
local position, token = tonumber(meta[2]), meta[3] + 1
-- All hand-offs of a batch have one token: no job is handed off twice in it.
local granted = format('%d', token * meta[4] + meta[5])
local instance, deadline = ARGV[1], now + ARGV[2]
local deadline_text, now_text, due_now = format('%d', deadline), format('%d', now), now * 1000
local lease_head = 'L0;' .. granted .. ';' .. deadline_text .. ';'
local lease_tail = ';' .. format('%d', due_now + us) .. ';'
local replies = { now, deadline, granted, position < tonumber(ARGV[3]) and 1 or 0, position }

local ENDED = { completed = true, failed = true, cancelled = true }
-- Where the fields of jobs begin among those that a shape reads, and `at:SEQ` among those that
-- are written.
local JOBS_AT, AT_TEXT = 3, 9

local shapes, at_fields, handed_off, pictures = {}, {}, {}, {}
-- By what the field of a job reads: the token if its lease is held, when that ends, whether leases
-- were lost before it.
local holders, ends, has_lost = {}, {}, {}
-- For each commit that is applied: what is written, how long that list is, what is removed.
local sets, sizes, drops, applied = {}, {}, {}, 0
local indexes, tickets, is_hinted = {}, 0, false

-- Writes a member of a sorted set with this score, or removes it.
local function note(name, member, score)
  local map = indexes[name]
  if not map then
    map = {}
    indexes[name] = map
  end
  map[member] = score
end

local function read_shape(text)
  local status, steps, guards, changes, names, several, gate =
    match(text, '^(%l+);(%d*);([%d,]*);([^;]*);(%d+);(s?);(.*)$')
  local fields, places = { 'version', 'status' }, {}
  local function place(step)
    if not places[step] then
      fields[#fields + 1] = 'job:' .. step
      places[step] = #fields
    end
    return places[step]
  end
  local shape = { status = status, steps = steps, fields = fields, is_end = ENDED[status],
    is_several = several == 's', guards = {}, changes = {}, names = tonumber(names) }
  for step in string.gmatch(guards, '%d+') do
    shape.guards[#shape.guards + 1] = place(step)
  end
  if gate ~= '' then
    local generation, flow = match(gate, '^(%d+)/(.*)$')
    local there = call('HGET', prefix .. 'gates', flow) or '0;0'
    shape.flow = flow
    if match(there, '^%d+') ~= generation then
      shape.moved = { 5, match(there, '^%d+'), match(there, '%d+$') }
    end
  end
  local argument = 6 + #shape.guards
  for kind, step, due, attempt, is_wanted in
    string.gmatch(changes, '(%a)(%d+)([+@]?%d*)/?(%d*)(!?),') do
    local change = { kind = kind, step = step, due = due, attempt = attempt,
      is_wanted = is_wanted == '!', place = place(step), field = 'job:' .. step }
    if kind == 'p' then change.argument, argument = argument, argument + 1 end
    shape.changes[#shape.changes + 1] = change
  end
  shape.names_at = argument
  shape.width = argument + (shape.names > 0 and shape.names + 1 or 0)
  -- A run that ends takes all of its jobs along.
  for step = 1, shape.is_end and steps or 0 do place(format('%d', step - 1)) end
  shapes[text] = shape
  return shape
end

-- The token of a job's lease; false if nobody holds one.
local function holder_of(state)
  local holder = holders[state]
  if holder == nil then
    local lost, found, over = match(state, '^L(%d);(%d+);(%d+);')
    over = tonumber(over)
    holder = found and over > now and found or false
    holders[state], ends[state], has_lost[state] = holder, over, lost == '1'
  end
  return holder
end

-- Jobs that are due at the same millisecond are claimed in the order in which they became so.
local function due_of(text)
  tickets = tickets + 1
  local span = tonumber(sub(text, 2))
  if sub(text, 1, 1) == '@' then
    return span * 1000 + math.min(tickets - 1, 999), span <= now
  elseif span == 0 then
    return due_now + math.min(us + tickets - 1, 999), true
  end
  return (now + span) * 1000 + math.min(tickets - 1, 999), false
end

-- What the field of a job reads that is leased to the caller.
local function leased(attempt, job)
  -- Nearly all begin with their first attempt, and are alike for runs of a flow at the same step.
  local state = attempt == '0' and handed_off[job]
  if not state then
    state = lease_head .. format('%d', attempt + 1) .. lease_tail .. job .. ';' .. instance
    if attempt == '0' then handed_off[job] = state end
  end
  return state
end

local function is_ours(state)
  return state and sub(state, 1, #lease_head) == lease_head
end

-- Has a field of the run removed with this commit.
local function drop(at, field)
  local dropped = drops[applied + 1]
  if not dropped then
    dropped = { ARGV[at] }
    drops[applied + 1] = dropped
  end
  dropped[#dropped + 1] = field
end

-- Takes a job out of its queue if it is in one; whether leases were lost, and `queue;job`. The
-- entry of a lease goes when it is looked at.
local function withdraw(at, step, state)
  local place, lost, _, _, _, _, queue, job = match(state, STATE)
  if place == 'Q' then note('queue:' .. queue, sub(ARGV[at], -36) .. ':' .. step, false) end
  return lost == '1', queue .. ';' .. job
end

-- Takes a job that goes out of its queue, and has its lost leases removed.
local function forget(at, field, state)
  local is_lost = holder_of(state) and has_lost[state]
  if not holder_of(state) then is_lost = withdraw(at, sub(field, 5), state) end
  if is_lost then drop(at, 'lost:' .. sub(field, 5)) end
end

-- What the field of a job reads that is put or goes back to its queue, and whether it is leased.
local function put(at, change, state)
  local job, lost = change.argument and ARGV[at + change.argument], '0'
  if change.is_wanted and change.due == '+0' and not state then
    return leased(change.attempt, job), true
  end
  if state then
    local is_lost, queued = withdraw(at, change.step, state)
    if change.kind == 'l' then
      job, lost = queued, is_lost and '1' or '0'
    elseif is_lost then
      drop(at, 'lost:' .. change.step)
    end
  end
  local due, is_due = due_of(change.due)
  if change.is_wanted and is_due and not is_ours(state) then
    return leased(change.attempt, job), true
  end
  due = format('%d', due)
  local queue, priority = match(job, '^([^;]*);%a+/?(%d*)')
  local order = is_due and priority ~= '' and order_of(due, priority) or due
  note('queue:' .. queue, sub(ARGV[at], -36) .. ':' .. change.step, order)
  is_hinted = true
  return 'Q' .. lost .. ';0;0;' .. change.attempt .. ';' .. due .. ';' .. job .. ';', false
end

-- The reply to a commit of which not all was handed off that was to be.
local function handed_off_of(shape, found)
  local reply = { 0 }
  for _, change in ipairs(shape.changes) do
    if change.is_wanted and is_ours(found[change.place]) then reply[#reply + 1] = change.step end
  end
  return reply
end

-- What a commit does to the jobs of a run that goes on: the size that `set` has after it, and
-- whether less is handed off than was to be.
local function change_jobs(at, shape, found, set, size)
  local guards, changes, leased_until = shape.guards, shape.changes, nil
  local is_leased, is_short = false, false
  for index = 1, #guards do
    local place = guards[index]
    local state = found[place]
    leased_until = math.min(leased_until or ends[state], ends[state])
    -- A commit under a lease has written the leases that were lost before it.
    if has_lost[state] then
      local field, told = shape.fields[place], 'L0' .. sub(state, 3)
      holders[told], ends[told], has_lost[told] = holders[state], ends[state], false
      found[place], set[size + 1], set[size + 2], size = told, field, told, size + 2
      drop(at, 'lost:' .. sub(field, 5))
    end
  end
  for index = 1, #changes do
    local change = changes[index]
    local place = change.place
    local state = found[place] ~= '' and found[place]
    if change.kind == 'r' then
      if state then
        forget(at, change.field, state)
        found[place], set[size + 1], set[size + 2], size = '', change.field, '', size + 2
      end
    elseif state or change.kind == 'p' then
      local new, is_handed_off = put(at, change, state)
      found[place], set[size + 1], set[size + 2], size = new, change.field, new, size + 2
      is_leased = is_leased or is_handed_off
      is_short = is_short or change.is_wanted and not is_handed_off
    end
  end
  -- Where a lease was held that ends no later than the new ones, the run has an entry for it.
  if is_leased and not (leased_until and leased_until <= deadline) then
    note('leases', sub(ARGV[at], -36), deadline_text)
  end
  return size, is_short
end

local function end_run(at, shape, found)
  local key, fields = ARGV[at], shape.fields
  local id = sub(key, -36)
  for place = JOBS_AT, #fields do
    local state = found[place]
    if state then
      if state ~= '' then forget(at, fields[place], state) end
      drop(at, fields[place])
      found[place] = false
    end
  end
  note('open', id, false)
  note('leases', id, false)
  note('ended', id, now_text)
  if shape.status ~= 'completed' then
    note(shape.status, id, call('HGET', key, 'started_at') or now_text)
  end
end

local function apply(at, shape, found)
  local key, after = ARGV[at], ARGV[at + 3]
  local at_field = at_fields[after]
  if not at_field then
    at_field = 'at:' .. after
    at_fields[after] = at_field
  end
  -- The list is made as long as most are: growing it costs more than writing it.
  local set, size = { key, 'version', after, 'record', ARGV[at + 4], after, ARGV[at + 5], at_field,
    false, false, false, false, false, false, false }, AT_TEXT
  local is_short = false
  if found[2] ~= shape.status then
    set[size + 1], set[size + 2], size = 'status', shape.status, size + 2
  end
  if found[1] == false then
    local id, names_at = sub(key, -36), at + shape.names_at
    set[size + 1], set[size + 2], size = 'started_at', now_text, size + 2
    set[size + 1], set[size + 2], size = 'steps', shape.steps, size + 2
    set[size + 1], set[size + 2], size = 'indexes', ARGV[names_at], size + 2
    for name = names_at + 1, names_at + shape.names do note(ARGV[name], id, now_text) end
    note('open', id, now_text)
    if shape.status == 'held' then note('held:' .. shape.flow, id, now_text) end
  elseif found[2] == 'held' then
    note('held:' .. match(call('HGET', key, 'indexes'), '"flow:([^"]*)"'), sub(key, -36), false)
  end
  if found[1] and shape.steps ~= '' then
    set[size + 1], set[size + 2], size = 'steps', shape.steps, size + 2
  end
  if shape.is_end then
    set[size + 1], set[size + 2], size = 'ended_at', now_text, size + 2
    end_run(at, shape, found)
  else
    size, is_short = change_jobs(at, shape, found, set, size)
  end
  applied = applied + 1
  sets[applied], sizes[applied] = set, size
  return is_short and handed_off_of(shape, found) or 0
end

-- What a commit is told that was decided on another version, or that was applied before.
local function refuse(at, shape, found, picture)
  local key, after, row = ARGV[at], ARGV[at + 3], ARGV[at + 5]
  local there = picture and picture[after] or call('HGET', key, after)
  if not there or sub(there, 1, 32) ~= sub(row, 1, 32) then return ARGV[at + 2] == '0' and 1 or 2 end
  local reply = { 4, picture and picture.record or call('HGET', key, 'record') }
  local text = call('HGET', key, 'at:' .. after)
  local by = text and match(text, '%d+$') or granted
  for _, change in ipairs(shape.changes) do
    local state = change.kind == 'p' and found[change.place]
    if state and state ~= '' then
      local place, _, holder, over, attempt, _, _, job, who = match(state, STATE)
      if place == 'L' and holder == by and who == instance and tonumber(over) > now then
        for _, value in ipairs({ change.step, holder, attempt, over, job }) do
          reply[#reply + 1] = value
        end
      end
    end
  end
  return reply
end

local function judge(at, shape, found, picture)
  -- The version decides before a lease does: this commit may have ended the lease.
  if (found[1] or '0') ~= ARGV[at + 2] or ENDED[found[2]] then
    return refuse(at, shape, found, picture)
  end
  if shape.moved then return shape.moved end
  local guards = shape.guards
  for index = 1, #guards do
    local state = found[guards[index]]
    if not state or holder_of(state) ~= ARGV[at + 5 + index] then
      return { 3, sub(shape.fields[guards[index]], 5) }
    end
  end
  return apply(at, shape, found)
end

-- The same for a run of which the call has several commits: each sees what those before it did.
local function judge_in_picture(at, shape)
  local key, fields, found = ARGV[at], shape.fields, {}
  local picture = pictures[key] or {}
  pictures[key] = picture
  for place, field in ipairs(fields) do
    if picture[field] == nil then picture[field] = call('HGET', key, field) end
    found[place] = picture[field]
  end
  local applied_before = applied
  local reply = judge(at, shape, found, picture)
  if applied > applied_before then
    found[1], found[2] = ARGV[at + 3], shape.status
    for place, field in ipairs(fields) do picture[field] = found[place] end
    picture.record, picture[ARGV[at + 3]] = ARGV[at + 4], ARGV[at + 5]
  end
  return reply
end

local at, commits = 8, tonumber(ARGV[5])
for index = #replies + 1, #replies + commits do
  local shape = shapes[ARGV[at + 1]] or read_shape(ARGV[at + 1])
  if shape.is_several then
    replies[index] = judge_in_picture(at, shape)
  else
    replies[index] = judge(at, shape, call('HMGET', ARGV[at], unpack(shape.fields)))
  end
  at = at + shape.width
end
if applied == 0 then return replies end

-- The first write is one that Redis refuses when it is out of memory, so that is before all.
-- Positions of commits that were refused stay unused.
local entry = format('%d', position + 1)
replies[5] = position + ARGV[6]
call('HSET', meta_key, 'position', format('%d', replies[5]), 'token', format('%d', token))
local at_text = now_text .. ';' .. entry .. ';' .. format('%d', applied) .. ';' .. granted
for index = 1, applied do
  local set = sets[index]
  set[AT_TEXT] = at_text
  call('HSET', unpack(set, 1, sizes[index]))
  if drops[index] then call('HDEL', unpack(drops[index])) end
end
-- One row of the feed for the whole batch: it costs as much as one for each commit.
local row = ARGV[7]
if applied < commits then
  local pointers = {}
  for index, set in ipairs(sets) do
    local count, offset = match(set[7], ROW)
    pointers[index] = sub(set[1], -36) .. ':' .. set[6] .. ':' .. count .. ':' .. offset
  end
  row = table.concat(pointers, ',')
end
call('XADD', prefix .. 'feed', entry .. '-0', 'rows', row)

for name, map in pairs(indexes) do
  local key, added, removed = prefix .. name, {}, {}
  for member, score in pairs(map) do
    if score then
      added[#added + 1], added[#added + 2] = score, member
    else
      removed[#removed + 1] = member
    end
  end
  if #removed > 0 then in_parts('ZREM', key, removed) end
  if name == 'leases' then
    add_leases(added)
  elseif #added > 0 then
    in_parts('ZADD', key, added)
    if sub(name, 1, 6) == 'queue:' then call('SADD', prefix .. 'queues', sub(name, 7)) end
  end
end

local is_due_wanted = is_hinted and tonumber(meta[6] or 0) > now
if is_due_wanted or tonumber(meta[7] or 0) > now then
  call('PUBLISH', ARGV[4], is_due_wanted and 'due' or 'feed')
end
return replies
