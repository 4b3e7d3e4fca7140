"""Kafka's messages about consumer groups, in the form that schemas.py describes: members, offsets, tools.

OffsetCommit and OffsetFetch end before the versions of the next generation of the group protocol, which is not served.
"""

from __future__ import annotations

MEMBERS = """
api 11 JoinGroup 0-9 flexible 6
request
    group_id: string
    session_timeout_ms: i32
    rebalance_timeout_ms: i32 1+ = -1
    member_id: string
    group_instance_id: string 5+ ?5+
    protocol_type: string
    protocols: []
        name: string
        metadata: bytes
    reason: string 8+ ?8+
response
    throttle_time_ms: i32 2+
    error_code: i16
    generation_id: i32 = -1
    protocol_type: string 7+ ?7+
    protocol_name: string ?7+
    leader: string
    skip_assignment: bool 9+
    member_id: string
    members: []
        member_id: string
        group_instance_id: string 5+ ?5+
        metadata: bytes

api 14 SyncGroup 0-5 flexible 4
request
    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: string 3+ ?3+
    protocol_type: string 5+ ?5+
    protocol_name: string 5+ ?5+
    assignments: []
        member_id: string
        assignment: bytes
response
    throttle_time_ms: i32 1+
    error_code: i16
    protocol_type: string 5+ ?5+
    protocol_name: string 5+ ?5+
    assignment: bytes

api 12 Heartbeat 0-4 flexible 4
request
    group_id: string
    generation_id: i32
    member_id: string
    group_instance_id: string 3+ ?3+
response
    throttle_time_ms: i32 1+
    error_code: i16

api 13 LeaveGroup 0-5 flexible 4
request
    group_id: string
    member_id: string 0-2
    members: [] 3+
        member_id: string
        group_instance_id: string ?3+
        reason: string 5+ ?5+
response
    throttle_time_ms: i32 1+
    error_code: i16
    members: [] 3+
        member_id: string
        group_instance_id: string ?3+
        error_code: i16
"""

OFFSETS = """
api 8 OffsetCommit 2-8 flexible 8
request
    group_id: string
    generation_id: i32 = -1
    member_id: string
    group_instance_id: string 7+ ?7+
    retention_time_ms: i64 2-4 = -1
    topics: []
        name: string
        partitions: []
            partition: i32
            offset: i64
            leader_epoch: i32 6+ = -1
            metadata: string ?0+
response
    throttle_time_ms: i32 3+
    topics: []
        name: string
        partitions: []
            partition: i32
            error_code: i16

api 9 OffsetFetch 1-8 flexible 6
request
    group_id: string 0-7
    topics: [] 0-7 ?2-7
        name: string
        partitions: [i32]
    groups: [] 8+
        group_id: string
        topics: [] ?8+
            name: string
            partitions: [i32]
    require_stable: bool 7+
response
    throttle_time_ms: i32 3+
    topics: [] 0-7
        name: string
        partitions: []
            partition: i32
            offset: i64 = -1
            leader_epoch: i32 5+ = -1
            metadata: string ?0+
            error_code: i16
    error_code: i16 2-7
    groups: [] 8+
        group_id: string
        topics: []
            name: string
            partitions: []
                partition: i32
                offset: i64 = -1
                leader_epoch: i32 = -1
                metadata: string ?0+
                error_code: i16
        error_code: i16

api 47 OffsetDelete 0-0 flexible 1
request
    group_id: string
    topics: []
        name: string
        partitions: []
            partition: i32
response
    error_code: i16
    throttle_time_ms: i32
    topics: []
        name: string
        partitions: []
            partition: i32
            error_code: i16
"""

TOOLS = """
api 15 DescribeGroups 0-5 flexible 5
request
    groups: [string]
    include_authorized_operations: bool 3+
response
    throttle_time_ms: i32 1+
    groups: []
        error_code: i16
        group_id: string
        group_state: string
        protocol_type: string
        protocol_data: string
        members: []
            member_id: string
            group_instance_id: string 4+ ?4+
            client_id: string
            client_host: string
            member_metadata: bytes
            member_assignment: bytes
        authorized_operations: i32 3+ = -2147483648

api 16 ListGroups 0-5 flexible 3
request
    states_filter: [string] 4+
    types_filter: [string] 5+
response
    throttle_time_ms: i32 1+
    error_code: i16
    groups: []
        group_id: string
        protocol_type: string
        group_state: string 4+
        group_type: string 5+

api 42 DeleteGroups 0-2 flexible 2
request
    groups_names: [string]
response
    throttle_time_ms: i32
    results: []
        group_id: string
        error_code: i16
"""

GROUP_TABLES = (MEMBERS, OFFSETS, TOOLS)
