//! The real table, over aws-sdk-dynamodb.
