//! Which headers go through (contract D.4, and more when configured).

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// What is forwarded besides the contract's list; `GCO_PROXY_FORWARD_HEADERS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// Every end-to-end header, `authorization` included.
    All,
    /// These.
    Names(Vec<HeaderName>),
}

impl Default for Forwarded {
    fn default() -> Self {
        Self::Names(Vec::new())
    }
}

/// Contract D.4's list and the two headers of a trace. `content-encoding` belongs to the body: without it nobody could read
/// one that is encoded.
static ALWAYS: [HeaderName; 14] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CACHE_CONTROL,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    HeaderName::from_static("idempotency-key"),
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    HeaderName::from_static("prefer"),
    header::RANGE,
    header::USER_AGENT,
    REQUEST_ID,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The request's name in all logs.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The data-parallel rank of a prefill leg (contract D.6).
pub const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// The key of the admin routes (contract D.5): a secret between people and the proxy.
pub const ADMIN_KEY: HeaderName = HeaderName::from_static("x-admin-api-key");

/// How the exchange ended, on every answer to a request that could have been split.
pub const EXCHANGE: HeaderName = HeaderName::from_static("x-gco-exchange");

/// Headers that concern one connection (RFC 9110, 7.6.1), and those that describe a body's length on it.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(*name, header::CONNECTION | header::TE | header::TRAILER | header::TRANSFER_ENCODING | header::UPGRADE)
        || matches!(*name, header::PROXY_AUTHENTICATE | header::PROXY_AUTHORIZATION)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Whether a header steers a hand-over: which rank, which bootstrap server, which parameters. Engines and what stands in
/// front of them take underscores for hyphens, so they are the same here.
fn steers_hand_over(name: &HeaderName) -> bool {
    const MARKS: [&str; 4] = ["data-parallel", "dp-rank", "bootstrap-", "kv-transfer"];
    let name = name.as_str();
    // The usual headers have none of these; only names that could have one are copied.
    let may =
        name.contains("rank") || name.contains("parallel") || name.contains("bootstrap") || name.contains("transfer");
    may && {
        let name = name.replace('_', "-");
        MARKS.iter().any(|mark| name.contains(mark))
    }
}

/// Whether a client's header never goes to an engine, whatever is configured: it concerns the connection or the body's length
/// on it, is set by the proxy, steers what only the proxy may steer, or is the proxy's own secret.
pub fn is_never_forwarded(name: &HeaderName) -> bool {
    is_hop_by_hop(name)
        || matches!(*name, header::HOST | header::CONTENT_LENGTH | header::EXPECT)
        || *name == ADMIN_KEY
        || steers_hand_over(name)
}

/// Whether the `Connection` header names this header.
fn is_named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
}

/// The headers of a leg without `Host`, made from the client's.
///
/// `request_id` is set when the client sent none.
pub fn to_engine(client: &HeaderMap, forwarded: &Forwarded, request_id: &HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(client.len() + 4);
    let has_connection = client.contains_key(header::CONNECTION);
    for (name, value) in client {
        // Nothing of the list is ever kept back, so that most requests end here; the longer look is for the others.
        let is_wanted = ALWAYS.contains(name)
            || match forwarded {
                Forwarded::All => !is_never_forwarded(name),
                Forwarded::Names(names) => names.contains(name) && !is_never_forwarded(name),
            };
        if is_wanted && !(has_connection && is_named_by_connection(client, name)) {
            headers.append(name.clone(), value.clone());
        }
    }
    if !headers.contains_key(REQUEST_ID) {
        headers.insert(REQUEST_ID, request_id.clone());
    }
    headers
}

/// Makes decode's headers those of the prefill leg: its answer is read by the proxy, so it is asked for whole and plain.
pub fn for_prefill(headers: &mut HeaderMap, rank: Option<u32>) {
    for name in [header::ACCEPT, header::ACCEPT_ENCODING, header::RANGE, header::IF_MATCH, header::IF_NONE_MATCH] {
        headers.remove(name);
    }
    if let Some(rank) = rank {
        headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
    }
}

/// Takes out of an engine's answer what concerns only the connection to it.
pub fn to_client(headers: &mut HeaderMap) {
    // Most answers have none of them: one look instead of a search for each.
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> =
            headers.keys().filter(|name| is_named_by_connection(headers, name)).cloned().collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in [
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<String> {
        let mut names: Vec<_> = headers.keys().map(ToString::to_string).collect();
        names.sort();
        names
    }

    #[test]
    fn no_header_that_always_goes_through_is_one_that_never_may() {
        assert!(!ALWAYS.iter().any(is_never_forwarded));
    }

    const ID: HeaderValue = HeaderValue::from_static("ours");

    fn client() -> HeaderMap {
        map(&[
            ("host", "proxy"),
            ("content-length", "7"),
            ("content-type", "application/json"),
            ("authorization", "Bearer x"),
            ("x-request-id", "theirs"),
            ("traceparent", "00-1-2-00"),
            ("x-custom", "1"),
            ("x-custom", "2"),
            ("x-hop", "1"),
            ("connection", "close, X-Hop"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("x-data-parallel-rank", "3"),
            ("x_data_parallel_rank", "3"),
            ("x-dp_rank", "3"),
            ("bootstrap-room", "3"),
            ("x-admin-api-key", "secret"),
        ])
    }

    #[test]
    fn the_contracts_list_and_the_trace_go_to_engines_and_nothing_else() {
        let sent = to_engine(&client(), &Forwarded::default(), &ID);
        assert_eq!(names(&sent), ["content-type", "traceparent", "x-request-id"]);
        assert_eq!(sent.get("x-request-id").unwrap(), "theirs");
        assert_eq!(to_engine(&HeaderMap::new(), &Forwarded::default(), &ID).get("x-request-id").unwrap(), "ours");
    }

    #[test]
    fn more_goes_when_configured_but_never_the_admin_key_nor_what_is_hop_by_hop_or_steers_a_hand_over() {
        let one = Forwarded::Names(vec![header::AUTHORIZATION, DATA_PARALLEL_RANK, ADMIN_KEY]);
        assert_eq!(
            names(&to_engine(&client(), &one, &ID)),
            ["authorization", "content-type", "traceparent", "x-request-id"]
        );
        let all = to_engine(&client(), &Forwarded::All, &ID);
        assert_eq!(names(&all), ["authorization", "content-type", "traceparent", "x-custom", "x-request-id"]);
        assert_eq!(all.get_all("x-custom").iter().count(), 2);
    }

    #[test]
    fn prefill_is_asked_for_a_plain_answer_and_told_its_rank() {
        let mut headers = map(&[("accept-encoding", "gzip"), ("accept", "text/event-stream"), ("user-agent", "x")]);
        for_prefill(&mut headers, Some(2));
        assert_eq!(names(&headers), ["user-agent", "x-data-parallel-rank"]);
        assert_eq!(headers.get(DATA_PARALLEL_RANK).unwrap(), "2");
    }

    #[test]
    fn an_answers_headers_pass_but_for_those_of_its_connection() {
        let mut headers = map(&[
            ("content-type", "text/event-stream"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("set-cookie", "a"),
            ("set-cookie", "b"),
        ]);
        to_client(&mut headers);
        assert_eq!(names(&headers), ["content-length", "content-type", "set-cookie"]);
        assert_eq!(headers.get_all("set-cookie").iter().count(), 2);
    }
}
