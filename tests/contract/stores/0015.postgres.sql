CREATE TABLE public.accounts_v1 (
    name text NOT NULL,
    spent bigint NOT NULL,
    reserved bigint NOT NULL
);
CREATE TABLE public.answers_v1 (
    mark bytea NOT NULL,
    session_id text NOT NULL,
    tip bytea NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.compaction_locks_v1 (
    session_id text NOT NULL,
    holder text NOT NULL,
    fence bigint NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE public.compactions_v1 (
    id text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    boundary bytea NOT NULL,
    messages bigint NOT NULL,
    seen_messages bigint NOT NULL,
    summary bytea NOT NULL,
    carried text NOT NULL,
    tokens_before bigint NOT NULL,
    tokens_after bigint NOT NULL,
    model text NOT NULL,
    cost text,
    duration_seconds double precision NOT NULL,
    outcome text NOT NULL,
    compacted_at double precision NOT NULL,
    undone_at double precision,
    earlier_id text,
    limit_tokens bigint,
    reason bytea,
    decision text,
    cleared bytea
);
CREATE TABLE public.corrections_v1 (
    id text NOT NULL,
    at double precision NOT NULL,
    call_id text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    account text NOT NULL,
    before_picodollars bigint,
    charged_picodollars bigint,
    after_picodollars bigint NOT NULL,
    reason bytea NOT NULL
);
CREATE TABLE public.fold_uses_v1 (
    compaction_id text NOT NULL,
    tip bytea NOT NULL,
    messages bigint NOT NULL,
    is_used bigint NOT NULL
);
CREATE TABLE public.folded_turns_v1 (
    compaction_id text NOT NULL,
    "position" bigint NOT NULL,
    message bytea NOT NULL
);
CREATE TABLE public.foveate_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.ledger_v1 (
    call_id text NOT NULL,
    at double precision NOT NULL,
    day text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    provider text NOT NULL,
    model text NOT NULL,
    category text NOT NULL,
    uncached bigint NOT NULL,
    read bigint NOT NULL,
    written_5m bigint NOT NULL,
    written_1h bigint NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    picodollars bigint,
    said_dollars text,
    tier text NOT NULL,
    estimated_input_tokens bigint,
    estimated_picodollars bigint,
    saved_by_cache bigint,
    saved_by_folds bigint,
    saved_by_cuts bigint,
    is_partial bigint NOT NULL,
    usage bytea NOT NULL,
    comparison text DEFAULT 'earlier'::text NOT NULL,
    without_picodollars bigint,
    saved_by_compaction bigint,
    saved_by_context bigint,
    saved_by_breakpoints bigint,
    saved_by_keep_alive bigint,
    simulation_error bigint,
    is_inherited bigint DEFAULT '0'::bigint NOT NULL,
    is_subscription bigint DEFAULT '0'::bigint NOT NULL,
    is_possibly_charged bigint DEFAULT '0'::bigint NOT NULL,
    charged_picodollars bigint
);
CREATE TABLE public.lessons_v1 (
    upstream text NOT NULL,
    counter text NOT NULL,
    responses bigint NOT NULL,
    learnt bytea NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.prefix_reuse_v1 (
    agent text NOT NULL,
    requests bigint NOT NULL,
    learnt bytea NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.rate_limits_v1 (
    agent text NOT NULL,
    provider text NOT NULL,
    name text NOT NULL,
    used double precision,
    resets_at double precision,
    status text NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.requests_v1 (
    id text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    format text NOT NULL,
    provider text NOT NULL,
    model text NOT NULL,
    at double precision NOT NULL,
    status bigint NOT NULL,
    usage bytea,
    sent bytea NOT NULL,
    came bytea,
    size_bytes bigint NOT NULL
);
CREATE TABLE public.reservations_v1 (
    call_id text NOT NULL,
    accounts text NOT NULL,
    picodollars bigint NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE public.session_parents_v1 (
    session_id text NOT NULL,
    parent_id text NOT NULL
);
CREATE TABLE public.session_totals_v1 (
    session_id text NOT NULL,
    agent text NOT NULL,
    model text NOT NULL,
    model_at double precision NOT NULL,
    first_at double precision NOT NULL,
    last_at double precision NOT NULL,
    window_at double precision DEFAULT '0'::double precision NOT NULL,
    tokens bigint,
    window_tokens bigint,
    requests bigint DEFAULT '0'::bigint NOT NULL,
    failed bigint DEFAULT '0'::bigint NOT NULL,
    added_microseconds bigint DEFAULT '0'::bigint NOT NULL,
    breaks bigint DEFAULT '0'::bigint NOT NULL,
    lost_tokens bigint DEFAULT '0'::bigint NOT NULL,
    lost_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    calls bigint DEFAULT '0'::bigint NOT NULL,
    unpriced bigint DEFAULT '0'::bigint NOT NULL,
    uncached bigint DEFAULT '0'::bigint NOT NULL,
    read bigint DEFAULT '0'::bigint NOT NULL,
    written_5m bigint DEFAULT '0'::bigint NOT NULL,
    written_1h bigint DEFAULT '0'::bigint NOT NULL,
    output_tokens bigint DEFAULT '0'::bigint NOT NULL,
    picodollars bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_cache bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_folds bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_cuts bigint DEFAULT '0'::bigint NOT NULL,
    planned_rewrites bigint DEFAULT '0'::bigint NOT NULL,
    rewritten_tokens bigint DEFAULT '0'::bigint NOT NULL,
    compared bigint DEFAULT '0'::bigint NOT NULL,
    without_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_compaction bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_context bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_breakpoints bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_keep_alive bigint DEFAULT '0'::bigint NOT NULL,
    simulation_error bigint DEFAULT '0'::bigint NOT NULL,
    would_not_fit bigint DEFAULT '0'::bigint NOT NULL,
    would_not_fit_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    inherited bigint DEFAULT '0'::bigint NOT NULL,
    inherited_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    subscription bigint DEFAULT '0'::bigint NOT NULL,
    subscription_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    possibly_charged bigint DEFAULT '0'::bigint NOT NULL,
    possibly_charged_picodollars bigint DEFAULT '0'::bigint NOT NULL
);
CREATE TABLE public.sessions_v1 (
    id text NOT NULL,
    agent text NOT NULL,
    tip bytea NOT NULL,
    messages bigint NOT NULL,
    created_at double precision NOT NULL,
    seen_at double precision NOT NULL,
    parent_id text,
    forked_at bytea,
    caller text,
    setting bytea,
    first_messages bigint DEFAULT '0'::bigint NOT NULL,
    folder bytea,
    opening bytea
);
CREATE TABLE public.totals_v1 (
    span text NOT NULL,
    start bigint NOT NULL,
    agent text NOT NULL,
    model text NOT NULL,
    category text NOT NULL,
    requests bigint DEFAULT '0'::bigint NOT NULL,
    failed bigint DEFAULT '0'::bigint NOT NULL,
    added_microseconds bigint DEFAULT '0'::bigint NOT NULL,
    breaks bigint DEFAULT '0'::bigint NOT NULL,
    lost_tokens bigint DEFAULT '0'::bigint NOT NULL,
    lost_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    calls bigint DEFAULT '0'::bigint NOT NULL,
    unpriced bigint DEFAULT '0'::bigint NOT NULL,
    uncached bigint DEFAULT '0'::bigint NOT NULL,
    read bigint DEFAULT '0'::bigint NOT NULL,
    written_5m bigint DEFAULT '0'::bigint NOT NULL,
    written_1h bigint DEFAULT '0'::bigint NOT NULL,
    output_tokens bigint DEFAULT '0'::bigint NOT NULL,
    picodollars bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_cache bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_folds bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_cuts bigint DEFAULT '0'::bigint NOT NULL,
    planned_rewrites bigint DEFAULT '0'::bigint NOT NULL,
    rewritten_tokens bigint DEFAULT '0'::bigint NOT NULL,
    compared bigint DEFAULT '0'::bigint NOT NULL,
    without_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_compaction bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_context bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_breakpoints bigint DEFAULT '0'::bigint NOT NULL,
    saved_by_keep_alive bigint DEFAULT '0'::bigint NOT NULL,
    simulation_error bigint DEFAULT '0'::bigint NOT NULL,
    would_not_fit bigint DEFAULT '0'::bigint NOT NULL,
    would_not_fit_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    inherited bigint DEFAULT '0'::bigint NOT NULL,
    inherited_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    subscription bigint DEFAULT '0'::bigint NOT NULL,
    subscription_picodollars bigint DEFAULT '0'::bigint NOT NULL,
    possibly_charged bigint DEFAULT '0'::bigint NOT NULL,
    possibly_charged_picodollars bigint DEFAULT '0'::bigint NOT NULL
);
CREATE TABLE public.traces_v1 (
    id text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    provider text NOT NULL,
    model text NOT NULL,
    at double precision NOT NULL,
    status bigint NOT NULL,
    tokens bigint,
    window_tokens bigint,
    fold_id text,
    told bytea NOT NULL,
    broke bytea
);
CREATE TABLE public.turn_counts_v1 (
    agent text NOT NULL,
    hash bytea NOT NULL,
    counter text NOT NULL,
    counted bytea NOT NULL
);
CREATE TABLE public.turns_v1 (
    agent text NOT NULL,
    hash bytea NOT NULL,
    "position" bigint NOT NULL,
    session_id text NOT NULL
);
INSERT INTO public.accounts_v1 VALUES ('day 2026-11-15', 61234567891, 250000000000);
INSERT INTO public.accounts_v1 VALUES ('day 2026-11-15 of ana', 61234567891, 250000000000);
INSERT INTO public.accounts_v1 VALUES ('session s', 61234567891, 250000000000);
INSERT INTO public.accounts_v1 VALUES ('total', 61234567891, 250000000000);
INSERT INTO public.accounts_v1 VALUES ('agent ana', 61234567891, 250000000000);
INSERT INTO public.answers_v1 VALUES ('\x00206d61726b', 'begun', '\x034a85188ffd5bb85ed2632d03cfc7d916358f0ea98f5e6b631992f59d5ad7b2', 420);
INSERT INTO public.compaction_locks_v1 VALUES ('s', 'me', 1, 1300);
INSERT INTO public.compactions_v1 VALUES ('fold-1', 'ana', 's', '\xa33cf67dffd55ed368c217c1af6ae49a5e97bdded65a50af13281712dc175d8b', 4, 9, '\x54686579206c6f6f6b6564206174207372632f6d61696e2e70792e', '["src/main.py", "port 8790"]', 9000, 700, 'claude-opus-5-5', '0.012345678901234567890', 2.5, 'ok', 200, NULL, NULL, NULL, '\x', NULL, NULL);
INSERT INTO public.compactions_v1 VALUES ('fold-2', 'ana', 's', '\x', 0, 9, '\x', '[]', 9000, 9000, 'claude-opus-5-5', '0.012345678901234567890', 2.5, 'failed', 300, NULL, NULL, NULL, '\x3532393a206f7665726c6f6164656400eda0bd', NULL, NULL);
INSERT INTO public.compactions_v1 VALUES ('fold-3', 'ana', 's', '\x94da6a35be435e44066eb0e754f0dc19e5b7e094baa59dbcbbedd9705d8d6d22', 4, 9, '\x', '[]', 9000, 700, 'claude-opus-5-5', '0', 2.5, 'results_cleared', 350, NULL, NULL, NULL, '\x', '{"moment": "arrival", "gain_dollars": 0.5, "cost_dollars": 0.125, "expected_requests": 12.5, "growth_tokens": 800.0}', '\x5b7b226d657373616765223a20312c2022626c6f636b223a20302c202274657874223a20225b636c65617265643a205c75643833645d222c2022746f6b656e73223a203930302c202273617665645f746f6b656e73223a203838307d2c207b226d657373616765223a20332c2022626c6f636b223a20322c202274657874223a20225b636c65617265643a205c75303030305d222c2022746f6b656e73223a203430302c202273617665645f746f6b656e73223a203338307d5d');
INSERT INTO public.corrections_v1 VALUES ('c58b656bd83a45c0abad60320972c264', 440, '', '', '', 'agent ana', 61234567891, NULL, 61234567891, '\x0020776879');
INSERT INTO public.fold_uses_v1 VALUES ('fold-1', '\xee51468d312830cee34b24fdcf9bb05bb84ca1c9b00d53f0f60f0f34dbe9b966', 9, 1);
INSERT INTO public.folded_turns_v1 VALUES ('fold-1', 0, '\x7b22726f6c65223a202275736572222c2022636f6e74656e74223a20226c6f6f6b227d');
INSERT INTO public.folded_turns_v1 VALUES ('fold-1', 1, '\x7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a225c7564383364227d');
INSERT INTO public.folded_turns_v1 VALUES ('fold-1', 2, '\xff00');
INSERT INTO public.folded_turns_v1 VALUES ('fold-1', 3, '\x7b7d');
INSERT INTO public.foveate_version VALUES ('0015');
INSERT INTO public.ledger_v1 VALUES ('call-1', 1794744000, '2026-11-15', 'ana', 's', 'anthropic', 'claude-opus-5-5', 'main', 12, 34000, 560, 78, 900, 100, 61234567891, '0.0612345678901234567890', 'batch', 35000, 200000000000, NULL, NULL, NULL, 1, '\x7b22696e7075745f746f6b656e73223a2031322c202263616368655f726561645f696e7075745f746f6b656e73223a2033343030307d', 'simulated', 214000000000, -1, 0, 153000000000, 0, 234567890, 0, 0, 0, 61234567891);
INSERT INTO public.lessons_v1 VALUES ('anthropic', '''claude-opus-9'' offline 3 aa', 2, '\x7b22726573706f6e736573223a322c22776569676874223a312e39382c2273756d5f696e7665727365223a302e30313039382c2273756d5f696e76657273655f73717561726564223a302e30303031303039382c2273756d5f726174696f223a322e3437342c2273756d5f726174696f5f696e7665727365223a302e3031333237343030303030303030303030312c227370726561645f776569676874223a312e302c2273756d5f6572726f725f73717561726564223a312e323833333535393738333733373938372c2264726966745f70657263656e74223a31392e3939393939393939393939393939367d', 400);
INSERT INTO public.prefix_reuse_v1 VALUES ('ana', 7, '\x7b227261746573223a7b2273797374656d223a7b2261736b6564223a332e352c22616761696e223a322e352c226c617465223a302e357d7d2c227265717565737473223a372c2262616c616e6365223a313032342e302c226c617267657374223a343039362e302c2272657475726e5f7365636f6e6473223a302e307d', 410);
INSERT INTO public.rate_limits_v1 VALUES ('ana', 'anthropic', '5h', 0.42, 9000.5, 'allowed', 430);
INSERT INTO public.requests_v1 VALUES ('req-1', 'ana', 's', 'anthropic', 'anthropic', 'claude-opus-5-5', 400, 200, '\x5b352c393030302c34302c322c37372c372c227374616e64617264225d', '\x7801ab56cacd4f49cd51b252504ace492c4d49d5cd2f282dd635d53555d25150ca4d2d2e4e4c4f2d064a47c782f88915f125f9d9a9792011c35a005b511360', '\x7801ab56cacd4f49cd51b252504ace492c4d49d5cd2f282dd635d53555d25150ca4d2d2e4e4c4f2d064a47c7d602003ee90e0c', 114);
INSERT INTO public.reservations_v1 VALUES ('call-2', '["agent ana","day 2026-11-15","day 2026-11-15 of ana","session s","total"]', 250000000000, 1794745200);
INSERT INTO public.session_parents_v1 VALUES ('fork', 's');
INSERT INTO public.session_totals_v1 VALUES ('s', 'ana', 'claude-opus-5-5', 1794744000, 400, 1794744000, 400, 34650, 200000, 1, 0, 2100, 1, 3000, 12300000000, 1, 0, 12, 34000, 560, 78, 900, 61234567891, 0, 0, 0, 0, 0, 1, 214000000000, -1, 0, 153000000000, 0, 234567890, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO public.sessions_v1 VALUES ('fork', 'ana', '\x31bace1ea5ca175176f3bfa31aedb0b50d39cae8902e86bced556e115023b9bf', 6, 100, 100, 's', '\xa33cf67dffd55ed368c217c1af6ae49a5e97bdded65a50af13281712dc175d8b', NULL, NULL, 0, NULL, NULL);
INSERT INTO public.sessions_v1 VALUES ('s', 'ana', '\xa33cf67dffd55ed368c217c1af6ae49a5e97bdded65a50af13281712dc175d8b', 4, 100, 100, NULL, NULL, NULL, NULL, 0, NULL, NULL);
INSERT INTO public.sessions_v1 VALUES ('begun', 'ana', '\x034a85188ffd5bb85ed2632d03cfc7d916358f0ea98f5e6b631992f59d5ad7b2', 1, 100, 100, NULL, NULL, 'caller', '\x002073657474696e67', 1, '\x2f686f6d652f616e612f67617264656e', '\x506c616e7420746865206265616e73');
INSERT INTO public.totals_v1 VALUES ('day', 498528, 'ana', 'claude-opus-5-5', 'main', 0, 0, 0, 0, 0, 0, 1, 0, 12, 34000, 560, 78, 900, 61234567891, 0, 0, 0, 0, 0, 1, 214000000000, -1, 0, 153000000000, 0, 234567890, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO public.totals_v1 VALUES ('hour', 498540, 'ana', 'claude-opus-5-5', 'main', 0, 0, 0, 0, 0, 0, 1, 0, 12, 34000, 560, 78, 900, 61234567891, 0, 0, 0, 0, 0, 1, 214000000000, -1, 0, 153000000000, 0, 234567890, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO public.totals_v1 VALUES ('day', 0, 'ana', 'claude-opus-5-5', 'main', 1, 0, 2100, 1, 3000, 12300000000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO public.totals_v1 VALUES ('ever', 0, 'ana', 'claude-opus-5-5', 'main', 1, 0, 2100, 1, 3000, 12300000000, 1, 0, 12, 34000, 560, 78, 900, 61234567891, 0, 0, 0, 0, 0, 1, 214000000000, -1, 0, 153000000000, 0, 234567890, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO public.totals_v1 VALUES ('hour', 0, 'ana', 'claude-opus-5-5', 'main', 1, 0, 2100, 1, 3000, 12300000000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO public.traces_v1 VALUES ('call-1', 'ana', 's', 'anthropic', 'claude-opus-5-5', 400, 200, 34650, 200000, 'fold-1', '\x5b747275652c383030302c302e303032312c5b5b2273797374656d222c343030305d2c5b22746f6f6c20726573756c7473222c33303635305d5d2c5b5b226361636865222c226d61726b203168222c2273797374656d5b305d222c227361766573206d6f7374222c333630305d2c5b22696e6a656374222c22696e73657274222c226d657373616765735b395d222c2273656374696f6e2074696d65222c2d34305d5d2c332c5b5b226d656d6f7279222c22e298833a20676f6e65225d5d5d', '\x5b2274696d657374616d70222c2273797374656d5b305d222c333030302c22302e30313233222c66616c73655d');
INSERT INTO public.turn_counts_v1 VALUES ('ana', '\x4cd7859757ad5ff9daeb31974ef5bcb69c15304f8058f1f84bfaff808efff384', 'o200k', '\x002037');
INSERT INTO public.turns_v1 VALUES ('ana', '\x0c515e235e7e41880302ae0f042edfbd25366390f4715845f22bdfa2fe8c56e7', 2, 's');
INSERT INTO public.turns_v1 VALUES ('ana', '\x4cd7859757ad5ff9daeb31974ef5bcb69c15304f8058f1f84bfaff808efff384', 0, 's');
INSERT INTO public.turns_v1 VALUES ('ana', '\xa33cf67dffd55ed368c217c1af6ae49a5e97bdded65a50af13281712dc175d8b', 3, 's');
INSERT INTO public.turns_v1 VALUES ('ana', '\xad5b695031ea91258bbfe006c35a41e8ecb605c8d7902138ed82d77badf5ee2a', 1, 's');
INSERT INTO public.turns_v1 VALUES ('ana', '\x31bace1ea5ca175176f3bfa31aedb0b50d39cae8902e86bced556e115023b9bf', 5, 'fork');
INSERT INTO public.turns_v1 VALUES ('ana', '\x424fcaa8056ccaef64c6f9c809bc641d66ee96046fb8624d41de281531fea650', 4, 'fork');
ALTER TABLE ONLY public.accounts_v1
    ADD CONSTRAINT accounts_v1_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.answers_v1
    ADD CONSTRAINT answers_v1_pkey PRIMARY KEY (mark, session_id);
ALTER TABLE ONLY public.compaction_locks_v1
    ADD CONSTRAINT compaction_locks_v1_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY public.compactions_v1
    ADD CONSTRAINT compactions_v1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.corrections_v1
    ADD CONSTRAINT corrections_v1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.fold_uses_v1
    ADD CONSTRAINT fold_uses_v1_pkey PRIMARY KEY (compaction_id, tip);
ALTER TABLE ONLY public.folded_turns_v1
    ADD CONSTRAINT folded_turns_v1_pkey PRIMARY KEY (compaction_id, "position");
ALTER TABLE ONLY public.foveate_version
    ADD CONSTRAINT foveate_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.ledger_v1
    ADD CONSTRAINT ledger_v1_pkey PRIMARY KEY (call_id);
ALTER TABLE ONLY public.lessons_v1
    ADD CONSTRAINT lessons_v1_pkey PRIMARY KEY (upstream, counter);
ALTER TABLE ONLY public.prefix_reuse_v1
    ADD CONSTRAINT prefix_reuse_v1_pkey PRIMARY KEY (agent);
ALTER TABLE ONLY public.rate_limits_v1
    ADD CONSTRAINT rate_limits_v1_pkey PRIMARY KEY (agent, provider, name);
ALTER TABLE ONLY public.requests_v1
    ADD CONSTRAINT requests_v1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.reservations_v1
    ADD CONSTRAINT reservations_v1_pkey PRIMARY KEY (call_id);
ALTER TABLE ONLY public.session_parents_v1
    ADD CONSTRAINT session_parents_v1_pkey PRIMARY KEY (session_id, parent_id);
ALTER TABLE ONLY public.session_totals_v1
    ADD CONSTRAINT session_totals_v1_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY public.sessions_v1
    ADD CONSTRAINT sessions_v1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.totals_v1
    ADD CONSTRAINT totals_v1_pkey PRIMARY KEY (span, start, agent, model, category);
ALTER TABLE ONLY public.traces_v1
    ADD CONSTRAINT traces_v1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.turn_counts_v1
    ADD CONSTRAINT turn_counts_v1_pkey PRIMARY KEY (agent, hash, counter);
ALTER TABLE ONLY public.turns_v1
    ADD CONSTRAINT turns_v1_pkey PRIMARY KEY (agent, hash);
CREATE INDEX answers_v1_session ON public.answers_v1 USING btree (session_id);
CREATE INDEX compactions_v1_boundary ON public.compactions_v1 USING btree (agent, boundary);
CREATE INDEX compactions_v1_earlier ON public.compactions_v1 USING btree (earlier_id);
CREATE INDEX compactions_v1_session ON public.compactions_v1 USING btree (session_id);
CREATE INDEX compactions_v1_time ON public.compactions_v1 USING btree (compacted_at);
CREATE INDEX corrections_v1_call ON public.corrections_v1 USING btree (call_id);
CREATE INDEX corrections_v1_time ON public.corrections_v1 USING btree (at, id);
CREATE INDEX ledger_v1_session ON public.ledger_v1 USING btree (session_id, at);
CREATE INDEX ledger_v1_time ON public.ledger_v1 USING btree (at, call_id);
CREATE INDEX lessons_v1_time ON public.lessons_v1 USING btree (at);
CREATE INDEX prefix_reuse_v1_time ON public.prefix_reuse_v1 USING btree (at);
CREATE INDEX rate_limits_v1_time ON public.rate_limits_v1 USING btree (at);
CREATE INDEX requests_v1_session ON public.requests_v1 USING btree (session_id, at);
CREATE INDEX requests_v1_time ON public.requests_v1 USING btree (at, id, size_bytes);
CREATE INDEX reservations_v1_time ON public.reservations_v1 USING btree (expires_at);
CREATE INDEX session_parents_v1_parent ON public.session_parents_v1 USING btree (parent_id);
CREATE INDEX session_totals_v1_agent ON public.session_totals_v1 USING btree (agent, last_at, session_id);
CREATE INDEX session_totals_v1_time ON public.session_totals_v1 USING btree (last_at, session_id);
CREATE INDEX sessions_v1_parent ON public.sessions_v1 USING btree (parent_id);
CREATE INDEX sessions_v1_tip ON public.sessions_v1 USING btree (agent, tip);
CREATE INDEX traces_v1_broke ON public.traces_v1 USING btree (at, id, agent) WHERE (broke IS NOT NULL);
CREATE INDEX traces_v1_session ON public.traces_v1 USING btree (session_id, at);
CREATE INDEX traces_v1_time ON public.traces_v1 USING btree (at, id);
CREATE INDEX turns_v1_session ON public.turns_v1 USING btree (session_id);
