/** A JSON value as a tree that opens where one looks. Texts are text nodes, whatever they hold. */

import { useState } from "preact/hooks";
import { CHILDREN_PAGE, TEXT_MAX, childrenOf, kindOf, opensAtOnce, pretty, preview, sizeOf } from "../model/json";
import { plural } from "../model/words";
import type { Json } from "../net/types";
import { Copy } from "./basics";
import { Icon } from "./icons";

export function JsonTree({ value, label }: { value: Json; label: string }) {
  return (
    <div class="json" aria-label={label}>
      <Copy text={pretty(value)} label={`copy ${label} as JSON`} />
      <Node value={value} name={null} depth={0} />
    </div>
  );
}

function Node({ value, name, depth }: { value: Json; name: string | null; depth: number }) {
  const size = sizeOf(value);
  const [open, setOpen] = useState(opensAtOnce(value, depth));
  const [limit, setLimit] = useState(CHILDREN_PAGE);
  const kind = kindOf(value);
  const isBranch = (kind === "list" || kind === "object") && size > 0;
  if (!isBranch) {
    return (
      <div class="json-row">
        <Name name={name} />
        <Leaf value={value} />
      </div>
    );
  }
  return (
    <div class="json-branch">
      <button type="button" class="json-row json-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        <Icon name={open ? "down" : "right"} size={10} />
        <Name name={name} />
        {open ? (
          <span class="faint">{kind === "list" ? plural(size, "item") : plural(size, "field")}</span>
        ) : (
          <span class="json-preview">{preview(value, 90)}</span>
        )}
      </button>
      {open ? (
        <div class="json-children">
          {childrenOf(value, limit).map(([child, inner]) => (
            <Node key={child} name={child} value={inner} depth={depth + 1} />
          ))}
          {size > limit ? (
            <button type="button" class="link" onClick={() => setLimit(limit + CHILDREN_PAGE)}>
              {plural(size - limit, "more", "more")}
            </button>
          ) : null}
        </div>
      ) : null}
    </div>
  );
}

function Name({ name }: { name: string | null }) {
  return name === null ? null : (
    <span class="json-name" title={name}>
      {name.length > 80 ? name.slice(0, 79) + "…" : name}
    </span>
  );
}

function Leaf({ value }: { value: Json }) {
  const [whole, setWhole] = useState(false);
  if (typeof value !== "string") {
    const text = value !== null && typeof value === "object" ? preview(value) : String(value);
    return <span class={`json-${kindOf(value)}`}>{text}</span>;
  }
  const isLong = value.length > TEXT_MAX;
  return (
    <span class="json-string">
      “{isLong && !whole ? value.slice(0, TEXT_MAX) + "…" : value}”
      {isLong ? (
        <button type="button" class="link" aria-expanded={whole} onClick={() => setWhole(!whole)}>
          {whole ? "less" : plural(value.length, "letter")}
        </button>
      ) : null}
    </span>
  );
}
