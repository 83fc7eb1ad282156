//! Hostile bodies through the proxy: no engine ends.

use std::collections::BTreeMap;

use axum::body::Body;
use gco_tests::real::Report;
use gco_tests::real::bodies;
use gco_tests::size::Size;
use http::Request;

use super::Known;
use super::pair::Pair;

pub(crate) async fn check(pair: &Pair, report: &mut Report, size: Size, after: &Known) -> anyhow::Result<()> {
    let engine_id = match pair.prefill.engine_id().await {
        Ok(id) => id,
        // NIXL has no bootstrap server; any id does.
        Err(_) => "00000000-0000-0000-0000-000000000000".to_owned(),
    };
    let count = size.choose(40, 200);
    let (mut statuses, mut exchanges, mut wrong) =
        (BTreeMap::<u16, usize>::new(), BTreeMap::<String, usize>::new(), Vec::new());
    for hostile in bodies::hostile(count, &engine_id, &pair.prefill.bootstrap()) {
        let mut request = Request::post(hostile.path).header("content-type", "application/json");
        for (name, value) in &hostile.headers {
            request = request.header(*name, *value);
        }
        match pair.proxy.send(request.body(Body::from(hostile.body.clone()))?).await {
            Ok(reply) => {
                *statuses.entry(reply.status).or_default() += 1;
                *exchanges.entry(reply.exchange().to_owned()).or_default() += 1;
                if !reply.whole || reply.status >= 500 {
                    wrong.push(format!("{}: {} for {}", reply.status, reply.text(), hostile.body));
                }
            }
            Err(problem) => wrong.push(format!("{problem:#} for {}", hostile.body)),
        }
    }
    let seen = format!("{count} bodies, answers {statuses:?}, {exchanges:?}");
    report.check(
        &pair.named("hostile bodies are answered, and none with a failure of an engine"),
        if wrong.is_empty() { Ok(seen) } else { Err(format!("{seen}; {}", wrong[0])) },
    );
    for engine in [&pair.prefill, &pair.decode] {
        let lives = engine.lives().await.map(|()| "health 200");
        report.check(
            &pair.named(&format!("{} lives after them", engine.name())),
            lives.map_err(|problem| format!("{problem:#}")),
        );
    }
    let waiting = pair.decode.tokens().await.map(|_| "no request waits for ever");
    report.check(&pair.named("decode comes to rest"), waiting.map_err(|problem| format!("{problem:#}")));
    let reply = pair.ask(after).await?;
    let good = reply.exchange() == "transferred" && reply.said()? == after.text;
    let seen = format!("{}: {}", reply.exchange(), reply.text());
    report.check(
        &pair.named("the next exchange is as ever"),
        if good { Ok("transferred".to_owned()) } else { Err(seen) },
    );
    Ok(())
}
