//! The routes, each with the scope that it needs.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{
    Content, OpenApi, Ref, RefOr, Response as DocumentedResponse, ResponseBuilder,
};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::host::Host;

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Anybody.
    Nothing,
    /// Anybody who shows something else than a token, which the route checks itself.
    Signature,
    /// Whoever has this scope.
    Scope(Scope),
}

impl From<Scope> for Needs {
    fn from(scope: Scope) -> Self {
        Self::Scope(scope)
    }
}

/// A route, as tests walk through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// `GET` and so on.
    pub method: String,
    /// The path below `/api/v1`, with `{name}` for what varies.
    pub path: String,
    /// Who may call it.
    pub needs: Needs,
}

/// Routes that are being put together.
pub(crate) struct Routes {
    router: OpenApiRouter<Host>,
    matrix: Vec<RouteEntry>,
    is_described: bool,
}

impl Routes {
    /// Routes that go into this document.
    pub(crate) fn described(document: OpenApi) -> Self {
        let router = OpenApiRouter::with_openapi(document);
        Self { router, matrix: Vec::new(), is_described: true }
    }

    /// Routes to serve only: their description takes several MiB, which an instance that has
    /// nothing to do would hold for ever.
    pub(crate) fn undescribed() -> Self {
        Self { router: OpenApiRouter::new(), matrix: Vec::new(), is_described: false }
    }

    /// Adds what `routes!` made, for callers that have what it needs.
    pub(crate) fn add(
        mut self,
        needs: impl Into<Needs>,
        (mut schemas, mut paths, router): UtoipaMethodRouter<Host>,
    ) -> Self {
        let needs = needs.into();
        for (path, item) in &mut paths.paths {
            for (method, operation) in operations(item) {
                self.matrix.push(RouteEntry {
                    method: method.to_owned(),
                    path: path.clone(),
                    needs,
                });
                if self.is_described {
                    describe(operation, method, needs);
                }
            }
        }
        if !self.is_described {
            schemas.clear();
            paths.paths.values_mut().for_each(|item| *item = PathItem::default());
        }
        let router = router.layer(from_fn(move |request: Request, next: Next| async move {
            match needs {
                Needs::Nothing | Needs::Signature => {}
                Needs::Scope(scope) => require(&request, scope)?,
            }
            Ok::<Response, ApiError>(next.run(request).await)
        }));
        self.router = self.router.routes((schemas, paths, router));
        self
    }

    pub(crate) fn finish(self) -> (Router<Host>, OpenApi, Vec<RouteEntry>) {
        let (router, document) = self.router.split_for_parts();
        (router, document, self.matrix)
    }
}

/// All routes below `/api/v1`.
pub fn matrix() -> Vec<RouteEntry> {
    crate::api::add_all(Routes::undescribed()).finish().2
}

fn require(request: &Request, scope: Scope) -> Result<(), ApiError> {
    let caller = request.extensions().get::<Caller>();
    let Some(held) = caller.and_then(|caller| caller.scope) else {
        let message = "the request has no token";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "token_missing", message)
            .help("send `Authorization: Bearer TOKEN`; `flowgate tokens new` makes one"));
    };
    if held < scope {
        let (held, scope) = (held.as_str(), scope.as_str());
        let message = format!("the token has the scope `{held}`, and this needs `{scope}`");
        return Err(ApiError::new(StatusCode::FORBIDDEN, "scope_missing", message));
    }
    Ok(())
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let slots = [
        ("GET", &mut item.get),
        ("POST", &mut item.post),
        ("PUT", &mut item.put),
        ("PATCH", &mut item.patch),
        ("DELETE", &mut item.delete),
    ];
    slots.into_iter().filter_map(|(method, slot)| Some((method, slot.as_mut()?)))
}

/// Adds to the description of an operation what holds for all of its kind.
fn describe(operation: &mut Operation, method: &str, needs: Needs) {
    let mut refusals = BTreeMap::from([
        ("400", "It cannot be read."),
        ("404", "There is no such thing."),
        ("408", "It did not come in time."),
        ("409", "It conflicts with what is there."),
        ("414", "Its address is too long."),
        ("421", "This host does not go by that name."),
        ("422", "It makes no sense."),
        ("431", "Its headers are too large."),
        (
            "503",
            "The instance, or its store, cannot do it now; `Retry-After` says when to try again.",
        ),
    ]);
    if method != "GET" {
        refusals
            .extend([("413", "Its body is too large."), ("415", "Its body is of another type.")]);
    }
    match needs {
        Needs::Nothing => {}
        Needs::Signature => {
            refusals.insert("401", "It is not signed, or not rightly.");
        }
        Needs::Scope(scope) => {
            refusals.insert("401", "It has no token, or one that is not known.");
            refusals.insert("403", "The token does not allow it, or another site sent it.");
            let said = format!("Needs the scope `{}`.", scope.as_str());
            let before = operation.description.take().filter(|text| !text.is_empty());
            operation.description = Some(match before {
                None => said,
                Some(text) => format!("{text}\n\n{said}"),
            });
        }
    }
    // Resources have verbs of the same names, and clients are generated from these.
    let tag = operation.tags.iter().flatten().next().map(|tag| tag.replace(' ', "_"));
    if let (Some(tag), Some(verb)) = (tag, operation.operation_id.take()) {
        operation.operation_id = Some(format!("{tag}_{verb}"));
    }
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer
            && answer.description.is_empty()
        {
            "Done.".clone_into(&mut answer.description);
        }
    }
    for (status, text) in refusals {
        let known = &mut operation.responses.responses;
        if !known.contains_key(status) {
            known.insert(status.to_owned(), RefOr::T(refusal(text)));
        }
    }
}

fn refusal(text: &str) -> DocumentedResponse {
    let schema = Ref::from_schema_name("ErrorBody");
    ResponseBuilder::new()
        .description(text)
        .content(
            "application/json",
            Content::new(Some(RefOr::<utoipa::openapi::Schema>::Ref(schema))),
        )
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::add_all;

    #[test]
    fn what_is_only_served_has_the_same_routes_and_no_description() {
        let (_, described, all) = add_all(Routes::described(OpenApi::default())).finish();
        let (_, undescribed, served) = add_all(Routes::undescribed()).finish();
        assert!(all.len() > 50, "{}", all.len());
        assert_eq!(served, all);
        let schemas = |document: OpenApi| document.components.map_or(0, |c| c.schemas.len());
        let operations = |document: &OpenApi| {
            let items = document.paths.paths.values();
            items.filter(|item| **item != PathItem::default()).count()
        };
        assert_eq!(operations(&undescribed), 0);
        assert_eq!(schemas(undescribed), 0);
        assert_eq!(operations(&described), described.paths.paths.len());
        assert!(schemas(described) > 50);
    }
}
