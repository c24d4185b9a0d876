import { Command, Empty, PageHead } from "../ui/basics";

export function DeploymentsPage() {
  return (
    <>
      <PageHead title="Deployments" about="How revisions of flows take over from one another" />
      <Empty title="No deployment has been made">
        <p class="muted">
          A saved flow file becomes the active revision at once, and runs that are open stay on the one that they
          started with. Deployments that drain, verify and roll back will be listed here, with what became of every run.
        </p>
        <p class="muted">What would change between two revisions is on the page of each <a href="/flows">flow</a>, or:</p>
        <Command text="flowgate flows diff order order.yaml" />
      </Empty>
    </>
  );
}
