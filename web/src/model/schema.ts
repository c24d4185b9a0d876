/**
 * The input that a flow wants: an example to begin with, and the mistakes that can be told before
 * the server is asked. The server decides; what is not understood here is left to it.
 */

import type { Json } from "../net/types";
import { kindOf } from "./json";

type Schema = { [key: string]: Json };

const DEPTH_MAX = 6;

function asSchema(value: Json | undefined): Schema | null {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
}

function typesOf(schema: Schema): string[] {
  const type = schema["type"];
  if (typeof type === "string") return [type];
  return Array.isArray(type) ? type.filter((each): each is string => typeof each === "string") : [];
}

/** A value that meets the schema, as far as it says what it wants. */
export function example(schema: Json, depth = 0): Json {
  const wanted = asSchema(schema);
  if (!wanted || depth > DEPTH_MAX) return null;
  if (Array.isArray(wanted["examples"]) && wanted["examples"].length > 0) return wanted["examples"][0] ?? null;
  for (const name of ["default", "const"]) {
    if (name in wanted) return wanted[name] ?? null;
  }
  if (Array.isArray(wanted["enum"])) return wanted["enum"][0] ?? null;
  const properties = asSchema(wanted["properties"]);
  const type = typesOf(wanted)[0] ?? (properties || Array.isArray(wanted["required"]) ? "object" : undefined);
  switch (type) {
    case "object":
      return exampleOfObject(wanted, properties ?? {}, depth);
    case "array": {
      const count = typeof wanted["minItems"] === "number" ? Math.min(wanted["minItems"], 3) : 0;
      return Array.from({ length: count }, () => example(wanted["items"] ?? null, depth + 1));
    }
    case "integer":
    case "number":
      return typeof wanted["minimum"] === "number" ? wanted["minimum"] : 0;
    case "string":
      return exampleOfText(wanted);
    case "boolean":
      return false;
    default:
      return null;
  }
}

function exampleOfObject(wanted: Schema, properties: Schema, depth: number): Json {
  const names = new Set(Object.keys(properties));
  const required = wanted["required"];
  if (Array.isArray(required)) {
    for (const name of required) if (typeof name === "string") names.add(name);
  }
  return Object.fromEntries([...names].map((name) => [name, example(properties[name] ?? null, depth + 1)]));
}

function exampleOfText(wanted: Schema): string {
  switch (wanted["format"]) {
    case "date-time":
      return "2030-01-01T00:00:00Z";
    case "date":
      return "2030-01-01";
    case "email":
      return "someone@example.com";
    case "uuid":
      return "00000000-0000-0000-0000-000000000000";
    case "uri":
      return "https://example.com/";
    default:
      return "";
  }
}

/** What is wrong with the value, in words; nothing if nothing can be told from here. */
export function mistakes(schema: Json, value: Json, path = "input", depth = 0): string[] {
  const wanted = asSchema(schema);
  if (!wanted || depth > DEPTH_MAX) return [];
  const types = typesOf(wanted);
  if (types.length > 0 && !types.some((type) => isOfType(type, value))) {
    return [`${path} must be ${types.map(withArticle).join(" or ")}, and is ${withArticle(typeName(value))}`];
  }
  const found: string[] = [];
  const allowed = wanted["enum"];
  if (Array.isArray(allowed) && !allowed.some((each) => JSON.stringify(each) === JSON.stringify(value))) {
    found.push(`${path} must be one of ${allowed.map((each) => JSON.stringify(each)).join(", ")}`);
  }
  if (typeof value === "number") {
    const [minimum, maximum] = [wanted["minimum"], wanted["maximum"]];
    if (typeof minimum === "number" && value < minimum) found.push(`${path} must be at least ${minimum}`);
    if (typeof maximum === "number" && value > maximum) found.push(`${path} must be at most ${maximum}`);
  }
  const fields = asSchema(value);
  if (fields) found.push(...mistakesOfFields(wanted, fields, path, depth));
  if (Array.isArray(value)) {
    for (const [at, child] of value.slice(0, 100).entries()) {
      found.push(...mistakes(wanted["items"] ?? null, child, `${path}[${at}]`, depth + 1));
    }
  }
  return found;
}

function mistakesOfFields(wanted: Schema, fields: Schema, path: string, depth: number): string[] {
  const found: string[] = [];
  const properties = asSchema(wanted["properties"]) ?? {};
  const required = wanted["required"];
  for (const name of Array.isArray(required) ? required : []) {
    if (typeof name === "string" && !(name in fields)) found.push(`${path}.${name} is missing`);
  }
  for (const [name, child] of Object.entries(fields)) {
    if (Object.hasOwn(properties, name)) {
      found.push(...mistakes(properties[name] ?? null, child, `${path}.${name}`, depth + 1));
    } else if (wanted["additionalProperties"] === false) {
      found.push(`${path}.${name} is not known`);
    }
  }
  return found;
}

function typeName(value: Json): string {
  const kind = kindOf(value);
  if (kind === "list") return "array";
  return kind === "number" && Number.isInteger(value) ? "integer" : kind;
}

function isOfType(type: string, value: Json): boolean {
  const name = typeName(value);
  return type === name || (type === "number" && name === "integer");
}

function withArticle(type: string): string {
  if (type === "null") return "null";
  return (/^[aeio]/.test(type) ? "an " : "a ") + type;
}
