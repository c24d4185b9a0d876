//! The chart, rendered as Helm does, as far as the chart goes: the templates of Go, and those
//! functions of Helm that it uses.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use gtmpl::{Context as Scope, FuncError, Template, Value as Held};
use serde_json::{Value, json};

use super::{documents, files, read};

/// Each template's name and text, with `changes` over the default values.
pub(super) fn render(chart: &Path, changes: &Value) -> anyhow::Result<Vec<(String, String)>> {
    let mut values = one(&chart.join("values.yaml"))?;
    merge(&mut values, changes);
    let schema: Value = serde_json::from_str(&read(&chart.join("values.schema.json"))?)?;
    let schema = jsonschema::validator_for(&schema).context("reading values.schema.json")?;
    let wrong: Vec<_> = schema.iter_errors(&values).map(|error| error.to_string()).collect();
    ensure!(wrong.is_empty(), "values.yaml is not what its schema says: {}", wrong.join("; "));
    let about = one(&chart.join("Chart.yaml"))?;
    let scope = held(&json!({
        "Values": values,
        "Release": { "Name": "test" },
        "Chart": { "AppVersion": about["appVersion"], "Name": about["name"] },
    }));
    let mut rendered = Vec::new();
    for path in files(&chart.join("templates"), "yaml")? {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut template = Template::with_name(file.as_str());
        template.add_func("toYaml", to_yaml);
        template.add_func("nindent", nindent);
        template.add_func("quote", quote);
        template.add_func("default", default);
        template
            .parse(read(&path)?)
            .map_err(|error| anyhow!("{file} is not a template: {error}"))?;
        let text = template
            .render(&Scope::from(scope.clone()))
            .map_err(|error| anyhow!("{file} cannot be rendered: {error}"))?;
        // What is missing is printed so by the templates of Go.
        ensure!(!text.contains("<no value>"), "{file} uses a value that there is none of");
        rendered.push((file, text));
    }
    Ok(rendered)
}

fn one(path: &Path) -> anyhow::Result<Value> {
    let mut documents = documents(path)?;
    documents.pop().with_context(|| format!("{} is empty", path.display()))
}

fn merge(values: &mut Value, changes: &Value) {
    match (values, changes) {
        (Value::Object(values), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(values.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change.clone(),
    }
}

fn held(value: &Value) -> Held {
    match value {
        Value::Null => Held::Nil,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => number.into(),
            (None, number) => number.unwrap_or_default().into(),
        },
        Value::String(text) => text.clone().into(),
        Value::Array(list) => Held::Array(list.iter().map(held).collect()),
        Value::Object(map) => {
            let map: HashMap<_, _> =
                map.iter().map(|(key, value)| (key.clone(), held(value))).collect();
            Held::Object(map)
        }
    }
}

/// JSON, which is YAML too.
fn json_of(value: &Held) -> String {
    match value {
        Held::Object(map) | Held::Map(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| *key);
            let pairs: Vec<_> = pairs
                .into_iter()
                .map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), json_of(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Held::Array(list) => {
            format!("[{}]", list.iter().map(json_of).collect::<Vec<_>>().join(", "))
        }
        Held::String(text) => Value::from(text.as_str()).to_string(),
        Held::Nil | Held::NoValue => "null".to_owned(),
        Held::Bool(_) | Held::Number(_) | Held::Function(_) => value.to_string(),
    }
}

fn argument<'a>(args: &'a [Held], at: usize, function: &str) -> Result<&'a Held, FuncError> {
    args.get(at).ok_or_else(|| FuncError::Generic(format!("{function} has too few arguments")))
}

/// One line for each key, so that it can be indented.
fn to_yaml(args: &[Held]) -> Result<Held, FuncError> {
    let value = argument(args, 0, "toYaml")?;
    let Held::Object(map) = value else { return Ok(json_of(value).into()) };
    let mut lines: Vec<_> = map
        .iter()
        .map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), json_of(value)))
        .collect();
    lines.sort();
    Ok(lines.join("\n").into())
}

fn nindent(args: &[Held]) -> Result<Held, FuncError> {
    let width: usize = argument(args, 0, "nindent")?
        .to_string()
        .parse()
        .map_err(|_| FuncError::Generic("nindent wants a width".to_owned()))?;
    let text = argument(args, 1, "nindent")?.to_string();
    let lines: Vec<_> = text.lines().map(|line| format!("{}{line}", " ".repeat(width))).collect();
    Ok(format!("\n{}", lines.join("\n")).into())
}

fn quote(args: &[Held]) -> Result<Held, FuncError> {
    Ok(Value::from(argument(args, 0, "quote")?.to_string()).to_string().into())
}

fn default(args: &[Held]) -> Result<Held, FuncError> {
    let (fallback, value) = (argument(args, 0, "default")?, argument(args, 1, "default")?);
    let is_empty = match value {
        Held::Nil | Held::NoValue => true,
        Held::String(text) => text.is_empty(),
        Held::Bool(value) => !value,
        Held::Object(map) | Held::Map(map) => map.is_empty(),
        Held::Array(list) => list.is_empty(),
        Held::Number(number) => number.as_f64() == Some(0.0),
        Held::Function(_) => false,
    };
    Ok(if is_empty { fallback.clone() } else { value.clone() })
}
