"""Kafka's messages as data: which fields, in which order, in which versions.

    api KEY NAME FIRST-LAST flexible VERSION      the versions this table can encode and decode
    request | response                            what follows, indented, are its fields in wire order
    name: TYPE [VERSIONS] [?NULLABLE VERSIONS] [tag N] [= DEFAULT]

TYPE is one of bool i8 i16 i32 i64 uuid string bytes records, [TYPE] for an array of these, [] for an array of the
structs indented below, {} for one struct. VERSIONS are `3`, `3-8` or `3+`; none: all. Fields with a tag are optional
on the wire and written only when they differ from their default.
"""

from __future__ import annotations

from millrace.wire.kafka.schemas_groups import GROUP_TABLES

DATA = """
api 0 Produce 3-13 flexible 9
request
    transactional_id: string ?0+
    acks: i16
    timeout_ms: i32
    topics: []
        name: string 0-12
        topic_id: uuid 13+
        partitions: []
            index: i32
            records: records ?0+
response
    topics: []
        name: string 0-12
        topic_id: uuid 13+
        partitions: []
            index: i32
            error_code: i16
            base_offset: i64
            log_append_time_ms: i64 2+ = -1
            log_start_offset: i64 5+ = -1
            record_errors: [] 8+
                batch_index: i32
                message: string ?0+
            error_message: string 8+ ?8+
            current_leader: {} 10+ tag 0
                leader_id: i32 = -1
                leader_epoch: i32 = -1
    throttle_time_ms: i32 1+
    node_endpoints: [] 10+ tag 0
        node_id: i32
        host: string
        port: i32
        rack: string ?0+

api 1 Fetch 4-16 flexible 12
request
    cluster_id: string 12+ ?12+ tag 0
    replica_id: i32 0-14 = -1
    replica_state: {} 15+ tag 1
        replica_id: i32 = -1
        replica_epoch: i64 = -1
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 3+ = 2147483647
    isolation_level: i8 4+
    session_id: i32 7+
    session_epoch: i32 7+ = -1
    topics: []
        name: string 0-12
        topic_id: uuid 13+
        partitions: []
            partition: i32
            current_leader_epoch: i32 9+ = -1
            fetch_offset: i64
            last_fetched_epoch: i32 12+ = -1
            log_start_offset: i64 5+ = -1
            partition_max_bytes: i32
    forgotten_topics: [] 7+
        name: string 0-12
        topic_id: uuid 13+
        partitions: [i32]
    rack_id: string 11+
response
    throttle_time_ms: i32 1+
    error_code: i16 7+
    session_id: i32 7+
    topics: []
        name: string 0-12
        topic_id: uuid 13+
        partitions: []
            partition: i32
            error_code: i16
            high_watermark: i64
            last_stable_offset: i64 4+ = -1
            log_start_offset: i64 5+ = -1
            diverging_epoch: {} 12+ tag 0
                epoch: i32 = -1
                end_offset: i64 = -1
            current_leader: {} 12+ tag 1
                leader_id: i32 = -1
                leader_epoch: i32 = -1
            aborted_transactions: [] 4+ ?4+
                producer_id: i64
                first_offset: i64
            preferred_read_replica: i32 11+ = -1
            records: records ?0+
    node_endpoints: [] 16+ tag 0
        node_id: i32
        host: string
        port: i32
        rack: string ?0+

api 2 ListOffsets 1-7 flexible 6
request
    replica_id: i32 = -1
    isolation_level: i8 2+
    topics: []
        name: string
        partitions: []
            partition: i32
            current_leader_epoch: i32 4+ = -1
            timestamp: i64
response
    throttle_time_ms: i32 2+
    topics: []
        name: string
        partitions: []
            partition: i32
            error_code: i16
            timestamp: i64 = -1
            offset: i64 = -1
            leader_epoch: i32 4+ = -1

api 23 OffsetForLeaderEpoch 2-4 flexible 4
request
    replica_id: i32 3+ = -2
    topics: []
        name: string
        partitions: []
            partition: i32
            current_leader_epoch: i32 = -1
            leader_epoch: i32
response
    throttle_time_ms: i32
    topics: []
        name: string
        partitions: []
            error_code: i16
            partition: i32
            leader_epoch: i32 = -1
            end_offset: i64 = -1

api 22 InitProducerId 0-4 flexible 2
request
    transactional_id: string ?0+
    transaction_timeout_ms: i32
    producer_id: i64 3+ = -1
    producer_epoch: i16 3+ = -1
response
    throttle_time_ms: i32
    error_code: i16
    producer_id: i64 = -1
    producer_epoch: i16
"""

CLUSTER = """
api 3 Metadata 0-12 flexible 9
request
    topics: [] ?1+
        topic_id: uuid 10+
        name: string ?10+
    allow_auto_topic_creation: bool 4+ = 1
    include_cluster_authorized_operations: bool 8-10
    include_topic_authorized_operations: bool 8+
response
    throttle_time_ms: i32 3+
    brokers: []
        node_id: i32
        host: string
        port: i32
        rack: string 1+ ?1+
    cluster_id: string 2+ ?2+
    controller_id: i32 1+ = -1
    topics: []
        error_code: i16
        name: string ?12+
        topic_id: uuid 10+
        is_internal: bool 1+
        partitions: []
            error_code: i16
            partition: i32
            leader_id: i32
            leader_epoch: i32 7+ = -1
            replica_nodes: [i32]
            isr_nodes: [i32]
            offline_replicas: [i32] 5+
        topic_authorized_operations: i32 8+ = -2147483648
    cluster_authorized_operations: i32 8-10 = -2147483648

api 10 FindCoordinator 0-4 flexible 3
request
    key: string 0-3
    key_type: i8 1+
    coordinator_keys: [string] 4+
response
    throttle_time_ms: i32 1+
    error_code: i16 0-3
    error_message: string 1-3 ?1-3
    node_id: i32 0-3
    host: string 0-3
    port: i32 0-3
    coordinators: [] 4+
        key: string
        node_id: i32
        host: string
        port: i32
        error_code: i16
        error_message: string ?0+

api 18 ApiVersions 0-4 flexible 3
request
    client_software_name: string 3+
    client_software_version: string 3+
response
    error_code: i16
    api_keys: []
        api_key: i16
        min_version: i16
        max_version: i16
    throttle_time_ms: i32 1+
    supported_features: [] 3+ tag 0
        name: string
        min_version: i16
        max_version: i16
    finalized_features_epoch: i64 3+ tag 1 = -1
    finalized_features: [] 3+ tag 2
        name: string
        max_version_level: i16
        min_version_level: i16
    zk_migration_ready: bool 3+ tag 3

api 60 DescribeCluster 0-1 flexible 0
request
    include_cluster_authorized_operations: bool
    endpoint_type: i8 1+ = 1
response
    throttle_time_ms: i32
    error_code: i16
    error_message: string ?0+
    endpoint_type: i8 1+ = 1
    cluster_id: string
    controller_id: i32 = -1
    brokers: []
        node_id: i32
        host: string
        port: i32
        rack: string ?0+
    cluster_authorized_operations: i32 = -2147483648
"""

ADMIN = """
api 19 CreateTopics 2-7 flexible 5
request
    topics: []
        name: string
        num_partitions: i32
        replication_factor: i16
        assignments: []
            partition: i32
            broker_ids: [i32]
        configs: []
            name: string
            value: string ?0+
    timeout_ms: i32 = 60000
    validate_only: bool
response
    throttle_time_ms: i32
    topics: []
        name: string
        topic_id: uuid 7+
        error_code: i16
        error_message: string ?0+
        topic_config_error_code: i16 5+ tag 0
        num_partitions: i32 5+ = -1
        replication_factor: i16 5+ = -1
        configs: [] 5+ ?5+
            name: string
            value: string ?0+
            read_only: bool
            config_source: i8 = -1
            is_sensitive: bool

api 20 DeleteTopics 1-6 flexible 4
request
    topics: [] 6+
        name: string ?0+
        topic_id: uuid
    topic_names: [string] 0-5
    timeout_ms: i32
response
    throttle_time_ms: i32
    topics: []
        name: string ?6+
        topic_id: uuid 6+
        error_code: i16
        error_message: string 5+ ?5+

api 37 CreatePartitions 0-3 flexible 2
request
    topics: []
        name: string
        count: i32
        assignments: [] ?0+
            broker_ids: [i32]
    timeout_ms: i32
    validate_only: bool
response
    throttle_time_ms: i32
    topics: []
        name: string
        error_code: i16
        error_message: string ?0+

api 21 DeleteRecords 0-2 flexible 2
request
    topics: []
        name: string
        partitions: []
            partition_index: i32
            offset: i64
    timeout_ms: i32
response
    throttle_time_ms: i32
    topics: []
        name: string
        partitions: []
            partition_index: i32
            low_watermark: i64
            error_code: i16

api 32 DescribeConfigs 1-4 flexible 4
request
    resources: []
        resource_type: i8
        resource_name: string
        keys: [string] ?0+
    include_synonyms: bool
    include_documentation: bool 3+
response
    throttle_time_ms: i32
    results: []
        error_code: i16
        error_message: string ?0+
        resource_type: i8
        resource_name: string
        configs: []
            name: string
            value: string ?0+
            read_only: bool
            config_source: i8 = -1
            is_sensitive: bool
            synonyms: []
                name: string
                value: string ?0+
                source: i8
            config_type: i8 3+
            documentation: string 3+ ?0+

api 33 AlterConfigs 0-2 flexible 2
request
    resources: []
        resource_type: i8
        resource_name: string
        configs: []
            name: string
            value: string ?0+
    validate_only: bool
response
    throttle_time_ms: i32
    responses: []
        error_code: i16
        error_message: string ?0+
        resource_type: i8
        resource_name: string

api 44 IncrementalAlterConfigs 0-1 flexible 1
request
    resources: []
        resource_type: i8
        resource_name: string
        configs: []
            name: string
            operation: i8
            value: string ?0+
    validate_only: bool
response
    throttle_time_ms: i32
    responses: []
        error_code: i16
        error_message: string ?0+
        resource_type: i8
        resource_name: string
"""

PRIVATE = """
api 32100 FenceWriter 0-0 flexible 0
request
    topic: string
    partition: i32
    writer_id: i64
    writer_epoch: i16
    timeout_ms: i32
response
    error_code: i16
    error_message: string ?0+
    offset: i64 = -1

api 32101 MovePosition 0-0 flexible 0
request
    group_id: string
    topic_id: uuid
    partition: i32
    call: bytes
response
    error_code: i16
    refused: string
    error_message: string ?0+
    position: bytes ?0+

api 32102 Floors 0-0 flexible 0
request
    call: bytes
response
    error_code: i16
    refused: string
    error_message: string ?0+
    told: bytes ?0+

api 32103 Prove 0-0 flexible 0
request
    message: bytes
response
    error_code: i16
    error_message: string ?0+
    message: bytes
"""

TABLES = (DATA, CLUSTER, ADMIN, *GROUP_TABLES, PRIVATE)
