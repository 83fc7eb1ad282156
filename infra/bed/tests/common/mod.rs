//! A plain client of the DynamoDB protocol.

use std::time::Duration;

use bytes::Bytes;
use gco_bed::wait;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// Talks to one server, or to a proxy before it.
#[derive(Clone)]
pub(crate) struct Tables {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Tables {
    pub(crate) fn at(url: String) -> Self {
        Self { url, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// The status and the JSON answer; an error when there was no whole answer.
    pub(crate) async fn call(&self, operation: &str, body: Value) -> Result<(u16, Value), String> {
        let request = Request::post(format!("{}/", self.url))
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("DynamoDB_20120810.{operation}"))
            .header("x-amz-date", "20250101T000000Z")
            .header(
                "authorization",
                "AWS4-HMAC-SHA256 Credential=bed/20250101/us-east-1/dynamodb/aws4_request, \
                 SignedHeaders=host, Signature=0",
            )
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let answer = self.client.request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, serde_json::from_slice(&body).map_err(|error| error.to_string())?))
    }

    /// Asks for the table. A server answers before the table can be used: [`Self::wait_until_active`] is the other half.
    pub(crate) async fn create_table(&self) -> Result<(u16, Value), String> {
        let table = json!({
            "TableName": "endpoints",
            "AttributeDefinitions": [{"AttributeName": "name", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        });
        self.call("CreateTable", table).await
    }

    /// Until the table is `ACTIVE`: before, rows are answered `ResourceNotFoundException`.
    pub(crate) async fn wait_until_active(&self) {
        wait::until("the table to be active", Duration::from_secs(60), async || {
            let (_, seen) = self.call("DescribeTable", json!({"TableName": "endpoints"})).await?;
            if seen["Table"]["TableStatus"] == "ACTIVE" { Ok(()) } else { Err(seen.to_string()) }
        })
        .await
        .unwrap();
    }

    /// Puts the row unless one of that name is there.
    pub(crate) async fn put_new(&self, name: &str, writer: &str) -> Result<(u16, Value), String> {
        let put = json!({
            "TableName": "endpoints",
            "Item": {"name": {"S": name}, "writer": {"S": writer}},
            "ConditionExpression": "attribute_not_exists(#n)",
            "ExpressionAttributeNames": {"#n": "name"},
        });
        self.call("PutItem", put).await
    }

    /// Who wrote the row; `None` when there is none.
    pub(crate) async fn writer_of(&self, name: &str) -> Option<String> {
        let get = json!({"TableName": "endpoints", "Key": {"name": {"S": name}}, "ConsistentRead": true});
        let (status, answer) = self.call("GetItem", get).await.unwrap();
        assert_eq!(status, 200, "{answer}");
        Some(answer["Item"]["writer"]["S"].as_str()?.to_owned())
    }
}
