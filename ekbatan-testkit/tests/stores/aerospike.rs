//! Aerospike, which the environment has to name.

use ekbatan_testkit::AerospikeServer;

#[tokio::test]
async fn a_server_crashes_and_restarts_on_its_port() {
    let server = AerospikeServer::start().await.unwrap();
    let port = server.port();
    assert_eq!(server.url(), format!("aerospike://127.0.0.1:{port}/test"));
    let config = server.info("get-config:context=service").await.unwrap();
    let folder = config.split(';').find_map(|it| it.strip_prefix("work-directory=")).unwrap();
    for _ in 0..2 {
        server.kill().await.unwrap();
        server.info("build").await.expect_err("it was killed");
        server.restart().await.unwrap();
        assert_eq!(server.port(), port);
        assert!(server.info("namespace/test").await.unwrap().contains("nsup-period=1;"));
    }
    // An orderly restart behaves the same way.
    server.restart().await.unwrap();
    assert!(!server.info("build").await.unwrap().is_empty());
    server.stop().await.unwrap();
    assert!(!std::path::Path::new(folder).exists());
}

#[tokio::test]
async fn settings_of_the_namespace_and_its_storage_are_applied() {
    let server = AerospikeServer::builder()
        .setting("nsup-period", "0")
        .setting("storage.evict-used-pct", "50")
        .start()
        .await
        .unwrap();
    let namespace = server.info("namespace/test").await.unwrap();
    assert!(namespace.contains("nsup-period=0;"), "{namespace}");
    assert!(namespace.contains("storage-engine.evict-used-pct=50;"), "{namespace}");
}

#[tokio::test]
async fn an_invalid_setting_is_reported_with_the_output_of_the_server() {
    let error = AerospikeServer::builder().setting("nsup-periods", "1").start().await.unwrap_err();
    assert!(error.to_string().contains("nsup-periods"), "{error}");
}
