UPDATE stagepost_incarnation SET states = states || jsonb_build_object(:fence::text, :state::text) WHERE id = :id
