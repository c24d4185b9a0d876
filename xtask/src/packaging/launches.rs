//! Every way in which the files start the binary.

use serde_json::Value;

/// One way to start the binary, and what is expected of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) place: String,
    pub(super) args: Vec<String>,
    /// Those whose values the file does not hold have none.
    pub(super) env: Vec<(String, Option<String>)>,
    pub(super) ports: Vec<u16>,
    pub(super) paths: Vec<String>,
}

impl Launch {
    /// The port of the address that it is told to listen on.
    pub(super) fn listens_on(&self) -> Option<u16> {
        let (_, value) = self.env.iter().find(|(name, _)| name == "FLOWGATE_LISTEN")?;
        value.as_deref()?.rsplit(':').next()?.parse().ok()
    }
}

/// The containers called `flowgate` of a manifest; probes and scrapes belong to them.
pub(super) fn in_manifest(place: &str, documents: &[Value]) -> Vec<Launch> {
    let pods = documents.iter().filter_map(|document| document.pointer("/spec/template"));
    pods.flat_map(|pod| {
        let containers = list(pod, "/spec/containers");
        containers.iter().filter(|container| container["name"] == "flowgate").map(|container| {
            let mut launch = Launch { place: place.to_owned(), ..Launch::default() };
            launch.args = list(container, "/args").iter().map(text).collect();
            for variable in list(container, "/env") {
                let value = variable.get("value").map(text);
                launch.env.push((text(&variable["name"]), value));
            }
            for port in list(container, "/ports") {
                launch.ports.extend(port["containerPort"].as_u64().map(short));
            }
            for probe in ["/readinessProbe", "/livenessProbe", "/startupProbe"] {
                let path = container.pointer(&format!("{probe}/httpGet/path"));
                launch.paths.extend(path.map(text));
            }
            if let Some(notes) = pod.pointer("/metadata/annotations") {
                launch.ports.extend(text(&notes["prometheus.io/port"]).parse::<u16>().ok());
                launch.paths.extend(notes.get("prometheus.io/path").map(text));
            }
            launch
        })
    })
    .collect()
}

/// The services of a compose file that are built from our image.
pub(super) fn in_compose(place: &str, documents: &[Value]) -> Vec<Launch> {
    let services = documents.iter().filter_map(|document| document["services"].as_object());
    services
        .flatten()
        .filter(|(_, service)| service.get("build").is_some())
        .map(|(name, service)| {
            let mut launch = Launch { place: format!("{place}: {name}"), ..Launch::default() };
            launch.args = list(service, "/command").iter().map(text).collect();
            if let Some(variables) = service["environment"].as_object() {
                for (name, value) in variables {
                    launch.env.push((name.clone(), in_place(&text(value))));
                }
            }
            for port in list(service, "/ports") {
                let port = text(port);
                launch
                    .ports
                    .extend(port.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()));
            }
            launch
        })
        .collect()
}

/// A value of a compose file, with the default of a variable that is all of it. What else Compose
/// puts in its place is not in the file.
fn in_place(value: &str) -> Option<String> {
    let variable = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let default = variable.and_then(|variable| variable.split_once(":-")).map(|(_, value)| value);
    let known = default.unwrap_or(value);
    (!known.contains("${")).then(|| known.to_owned())
}

/// What a unit of systemd starts.
pub(super) fn in_unit(place: &str, unit: &str) -> Launch {
    let mut launch = Launch { place: place.to_owned(), ..Launch::default() };
    for line in unit.lines() {
        if let Some(command) = line.strip_prefix("ExecStart=") {
            launch.args = command.split_whitespace().skip(1).map(str::to_owned).collect();
        } else if let Some((name, value)) =
            line.strip_prefix("Environment=").and_then(|pair| pair.split_once('='))
        {
            launch.env.push((name.to_owned(), Some(value.replace("%i", "1"))));
        }
    }
    launch
}

/// What the image starts.
pub(super) fn in_image(place: &str, dockerfile: &str) -> Launch {
    let mut launch = Launch { place: place.to_owned(), ..Launch::default() };
    let joined = dockerfile.replace("\\\n", " ");
    for line in joined.lines() {
        match line.split_once(' ') {
            Some(("CMD", words)) => {
                launch.args = serde_json::from_str(words).unwrap_or_default();
            }
            Some(("ENV", pairs)) => {
                let pairs = pairs.split_whitespace().filter_map(|pair| pair.split_once('='));
                launch
                    .env
                    .extend(pairs.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))));
            }
            Some(("EXPOSE", port)) => launch.ports.extend(port.trim().parse::<u16>().ok()),
            Some(_) | None => {}
        }
    }
    launch
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number that is no port is none that anybody listens on.
fn short(port: u64) -> u16 {
    u16::try_from(port).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_read_with_its_probes_and_scrapes() {
        let document = serde_json::json!({"spec": {"template": {
            "metadata": {"annotations": {"prometheus.io/port": "7", "prometheus.io/path": "/m"}},
            "spec": {"containers": [
                {"name": "other", "args": ["x"]},
                {
                    "name": "flowgate",
                    "args": ["worker", "start"],
                    "env": [
                        {"name": "FLOWGATE_LISTEN", "value": "0.0.0.0:7"},
                        {"name": "FLOWGATE_STORE", "valueFrom": {}}
                    ],
                    "ports": [{"containerPort": 7}],
                    "readinessProbe": {"httpGet": {"path": "/r"}}
                }
            ]}
        }}});
        let launches = in_manifest("a.yaml", &[document]);
        let [launch] = launches.as_slice() else { panic!("one container is ours: {launches:?}") };
        assert_eq!(launch.args, ["worker", "start"]);
        assert_eq!(launch.env[1], ("FLOWGATE_STORE".into(), None));
        assert_eq!((launch.ports.as_slice(), launch.listens_on()), ([7, 7].as_slice(), Some(7)));
        assert_eq!(launch.paths, ["/r", "/m"]);
    }

    #[test]
    fn a_variable_of_a_compose_file_has_the_default_that_is_written_there() {
        for (text, expected) in [
            ("off", Some("off")),
            ("${API:-off}", Some("off")),
            ("${API}", None),
            ("${API:?say}", None),
            ("redis://${HOST:-redis}/0", None),
        ] {
            assert_eq!(in_place(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_image_is_read_over_continued_lines() {
        let launch = in_image("D", "ENV A=1 \\\n    FLOWGATE_LISTEN=:9\nEXPOSE 9\nCMD [\"run\"]\n");
        assert_eq!(launch.env[0], ("A".into(), Some("1".into())));
        assert_eq!(
            (launch.listens_on(), launch.ports, launch.args),
            (Some(9), vec![9], vec!["run".into()])
        );
    }
}
