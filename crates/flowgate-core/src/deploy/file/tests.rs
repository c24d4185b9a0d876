use super::*;

const WHOLE: &str = "
strategy: canary
pool: green
drain_timeout: 10s
verify_timeout: 5s
checkpoint_expiry: 2h
audit_retention: 1d
audit_max_per_flow: 10
replay_rate: unlimited
before_window: 20
hold_max: 500
migrate: false
steps: { charge: debit }
smoke_tests:
  - name: one
    input: { orderId: 7 }
    expect:
      status: failed
      emits: { payment.done: { schema: { required: [amount] } } }
      result: { ship: { equals: null } }
  - name: two
shadow: { runs: 9, ignore: [emits.payment.done/at, steps.ship], differ_max: 2, timeout: 30s }
canary: { share: 0.5%, samples_min: 9, error_rate_max: 0.5, latency_ratio_max: 3, timeout: 1m }
alerts: { error_rate_max: 0.05, latency_p99_max: 2s, webhook: 'https://example.com/a' }
";

#[test]
fn every_field_is_read_and_written() {
    let settings = Settings::parse(WHOLE).unwrap();
    insta::assert_json_snapshot!(settings);
    let file = DeployFile::parse(WHOLE).unwrap();
    let json = serde_json::to_string(&file).unwrap();
    assert_eq!(DeployFile::parse(&json).unwrap(), file);
}

#[test]
fn what_is_left_out_has_its_default() {
    let settings = Settings::parse("{}").unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(Settings::parse("# Nothing special.\n").unwrap(), settings);
    assert_eq!(settings.drain_timeout.to_string(), "30s");
    assert_eq!(settings.verify_timeout.to_string(), "15s");
    assert_eq!(settings.checkpoint_expiry.to_string(), "1d");
    assert_eq!(settings.audit_retention.to_string(), "7d");
    assert_eq!((settings.audit_max_per_flow, settings.before_window), (1_000, 50));
    assert_eq!((settings.replay_rate.to_string(), settings.hold_max), ("10".to_owned(), 100_000));
    assert_eq!(settings.shadow, None);
    let shadow = Settings::parse("shadow: {}").unwrap().shadow;
    assert_eq!(shadow, Some(ShadowRules::default()));
    let tried = Settings::parse("strategy: shadow").unwrap();
    assert_eq!(tried.shadow, Some(ShadowRules::default()));
    let strict = Settings::parse("strategy: blue-green\nmigrate: true").unwrap();
    assert_eq!(strict.migration, Migration::All);
}

/// Texts and what is wrong with them.
const BROKEN: [(&str, &str); 26] = [
    ("strategi: rolling", "1:1: unknown field `strategi`; did you mean `strategy`?"),
    ("strategy: bluegreen", "1:11: unknown kind `bluegreen`; did you mean `blue-green`?"),
    (
        "drain_timeout: 30",
        "1:16: `30` is a length of time without a unit; write `30s` for seconds, or use ms, m, h or d",
    ),
    (
        "replay_rate: fast",
        "1:14: `fast` is not a rate; write how many in a second, such as `10`, or `unlimited`",
    ),
    (
        "replay_rate: 0",
        "1:14: `0` in a second is not a rate; write a number from 1 to 4294967295, or `unlimited`",
    ),
    ("verify_timeout: 0s", "1:1: `0s` is no time at all; write at least `1ms`"),
    ("hold_max: 0", "1:1: `0` is out of range; write a number from 1 to 10000000"),
    (
        "pool: a b",
        "1:1: this pool cannot be called `a b`; use letters, digits, `.`, `_` and `-`, beginning with a letter or a digit",
    ),
    (
        "migrate: true",
        "1:1: `migrate` does nothing with `strategy: rolling`: open runs stay pinned; remove it, or write `strategy: blue-green`",
    ),
    (
        "canary: {share: 5%}",
        "1:1: `canary` does nothing with `strategy: rolling`; remove it, or write `strategy: canary`",
    ),
    (
        "canary: {share: 500%}",
        "1:17: `500%` is not a share; write a percentage over 0 and up to 100, such as `5%` or `0.5%`",
    ),
    (
        "strategy: canary\ncanary: {latency_ratio_max: 0.5}",
        "2:10: `0.5` is out of range; write a number from 1 to 1000",
    ),
    (
        "steps: {a: c, b: c}",
        "1:15: `a` and `b` both become `c`; map one of them to another step, or leave it out",
    ),
    (
        "steps: [a]",
        "1:8: a list does not fit here; write `old step: new step` for each step that has another name",
    ),
    ("smoke_tests: [{}]", "1:15: `name` is missing; add it"),
    (
        "smoke_tests: [{name: a}, {name: a}]",
        "1:27: there are two smoke tests `a`; rename one of them",
    ),
    (
        "smoke_tests: [{name: a, expect: {emits: {x: {}}}}]",
        "1:42: it does not say what is expected; write one of `{equals: VALUE}` and `{schema: {type: object}}`",
    ),
    (
        "smoke_tests: [{name: a, expect: {emits: {x: {equals: 1, schema: {}}}}}]",
        "1:42: it has both `equals` and `schema`; write one of `{equals: VALUE}` and `{schema: {type: object}}`",
    ),
    (
        "smoke_tests: [{name: a, expect: {result: {x: {schema: 7}}}}]",
        "1:47: this is not a JSON Schema; write a mapping such as `{type: object, required: [amount]}`",
    ),
    (
        "smoke_tests: [{name: a, expect: {status: done}}]",
        "1:42: unknown kind `done`; known here are `completed`, `failed`",
    ),
    ("shadow: {runs: 201}", "1:10: `201` is out of range; write a number from 1 to 200"),
    (
        "shadow: {runs: 3, differ_max: 3}",
        "1:19: `3` of 3 runs may differ, so the shadow decides nothing; write less than `runs`, or leave `shadow` out",
    ),
    (
        "shadow: {ignore: at}",
        "1:18: `at` does not fit here; write a list of paths, such as `[emits.order.done/at]`",
    ),
    (
        "shadow: {ignore: [at]}",
        "1:19: `at` is not a place that is compared; write one such as `emits.order.done/at`, `result.ship/items/*/id` or `steps.notify`",
    ),
    (
        "alerts: {webhook: 'ftp://a/'}",
        "1:10: `ftp://a/` is not the address of a web server; write one such as `https://example.com/alerts`",
    ),
    ("alerts: {error_rate_max: 5}", "1:10: `5` is out of range; write a number from 0 to 1"),
];

#[test]
fn what_is_wrong_has_its_place_and_the_way_out() {
    let found = |text: &str| match Settings::parse(text) {
        Ok(_) => "nothing".to_owned(),
        Err(errors) => errors.to_string(),
    };
    let found: Vec<(&str, String)> = BROKEN.iter().map(|(text, _)| (*text, found(text))).collect();
    let wanted: Vec<(&str, String)> =
        BROKEN.iter().map(|(text, wanted)| (*text, (*wanted).to_owned())).collect();
    assert_eq!(found, wanted);
}

#[test]
fn a_schema_that_is_wrong_or_would_fetch_is_refused() {
    for schema in ["{type: objekt}", "{$ref: 'https://example.com/s.json'}", "{pattern: '(a'}"] {
        let text =
            format!("smoke_tests: [{{name: a, expect: {{emits: {{x: {{schema: {schema}}}}}}}}}]");
        let errors = Settings::parse(&text).unwrap_err().to_string();
        assert!(errors.contains("this is not a valid JSON Schema"), "{errors}");
    }
}

#[test]
fn a_deploy_file_must_fit_the_revision() {
    let flow = Flow::parse(
        "flow: order
input: {type: object, required: [id]}
steps:
  start: {run: {worker: w}, emits: [payment.done]}
  ship: {subscribes: [payment.done], run: {worker: w}}",
    )
    .unwrap();
    let good =
        "smoke_tests: [{name: a, input: {id: 7}, expect: {emits: {payment.done: {equals: 1}}}}]";
    assert!(Settings::parse_for(good, &flow).is_ok());
    let bad = "steps: {charge: shp}
smoke_tests:
  - name: a
    expect:
      emits: {payment.don: {equals: 1}}
      result: {strat: {equals: 1}}";
    let errors = Settings::parse_for(bad, &flow).unwrap_err();
    assert_eq!(
        errors.in_file("deploy.yaml").to_string(),
        "deploy.yaml:1:9: the new revision has no step `shp`; did you mean `ship`?
deploy.yaml:3:5: the input does not meet the schema of flow `order`: input: null is not of type \"object\"; correct the input
deploy.yaml:5:15: no step of the new revision emits `payment.don`; did you mean `payment.done`?
deploy.yaml:6:16: the new revision has no step `strat`; did you mean `start`?"
    );
}
