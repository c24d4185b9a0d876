-- KEYS[1]  prefix of the partition
-- Reply    time
return (clock(call('HGET', meta_key, 'clock_ms')))
