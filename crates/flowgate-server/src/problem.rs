//! Codes for what is wrong with flow files and schedules.

/// Keys whose values are numbers or lengths of time with bounds.
const BOUNDED: [&str; 15] = [
    "attempts",
    "initial",
    "factor",
    "max",
    "jitter",
    "timeout",
    "priority",
    "limit",
    "per",
    "every",
    "catch_up",
    "delay",
    "concurrency",
    "window",
    "rate",
];

/// The code of a problem that has one of its own: what is wrong at `path`, in these words.
pub(crate) fn code(path: &str, message: &str) -> Option<&'static str> {
    if message.starts_with("unknown field") {
        return Some("unknown_field");
    }
    // A number of another kind than is asked for, such as a negative count.
    let misfit =
        message.strip_prefix('`').and_then(|rest| rest.strip_suffix("` does not fit here"));
    if misfit.is_some_and(|text| text.parse::<f64>().is_ok()) {
        return Some("out_of_range");
    }
    // What has a code of its own says so.
    let begun = |code: &'static str| message.starts_with(&format!("{code}: ")).then_some(code);
    let own = ["scheme_forbidden", "env_forbidden", "arg_invalid"].into_iter().find_map(begun);
    if own.is_some() {
        return own;
    }
    let last = path.rsplit('.').next().unwrap_or(path);
    match last {
        "cron" if message.contains("is never due") => Some("cron_never_fires"),
        "cron" | "zone" => Some("cron_invalid"),
        key if BOUNDED.contains(&key) => Some("out_of_range"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use flowgate_core::flow::Flow;

    fn check(rest: &str, expected: Option<&str>) {
        let text = format!("flow: a\nsteps:\n  only: {rest}\n");
        let errors = Flow::parse(&text).expect_err(rest);
        let wrong = &errors.as_slice()[0].problem;
        assert_eq!(super::code(&wrong.path.to_string(), &wrong.message), expected, "{wrong}");
    }

    #[test]
    fn what_is_out_of_its_bounds_has_a_code() {
        for rest in [
            "{run: {worker: w}, retry: {attempts: 0}}",
            "{run: {worker: w}, retry: {attempts: 1000000000}}",
            "{run: {worker: w}, retry: {attempts: 2, backoff: {initial: 0s}}}",
            "{run: {worker: w}, retry: {attempts: 2, backoff: {factor: .nan}}}",
            "{run: {worker: w}, retry: {attempts: 2, backoff: {max: 1000000000000000000ms}}}",
            "{run: {worker: w}, priority: 11}",
        ] {
            check(rest, Some("out_of_range"));
        }
        check("{subscribes: [nothing]}", None);
    }

    #[test]
    fn a_cron_expression_has_codes_of_its_own() {
        let schedule = |when: &str, code| {
            check(&format!("{{}}\nschedules:\n  s: {{{when}}}"), Some(code));
        };
        for cron in ["* * * * * * *", "61 * * * *", "@reboot", &"*".repeat(10_000)] {
            schedule(&format!("cron: \"{cron}\""), "cron_invalid");
        }
        schedule("cron: \"0 0 31 2 *\"", "cron_never_fires");
        schedule("cron: \"0 0 1 1 *\", zone: Mars/Base", "cron_invalid");
    }
}
