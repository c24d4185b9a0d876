import { Empty } from "../ui/basics";

export function MissingPage() {
  return (
    <Empty title="There is no page here">
      <p class="muted">The address may be of another version. <a href="/">Back to the overview</a></p>
    </Empty>
  );
}
