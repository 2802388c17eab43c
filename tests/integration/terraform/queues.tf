# What a program has that lives on queues and topics, as it would be written for AWS: every
# attribute is set somewhere, and `changed` changes each that can be changed in place.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100.0"
    }
  }
}

variable "changed" {
  type        = bool
  default     = false
  description = "Whether what can be changed in place is changed."
}

provider "aws" {
  region = "us-east-1"

  default_tags {
    tags = { managed-by = "terraform" }
  }
}

data "aws_caller_identity" "current" {}

resource "aws_sqs_queue" "plain" {
  name = "plain"
}

resource "aws_sqs_queue" "letters" {
  name                      = "orders-letters"
  message_retention_seconds = 1209600
  tags                      = { purpose = "dead letters", empty = "" }
}

resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  delay_seconds              = var.changed ? 0 : 15
  max_message_size           = var.changed ? 4096 : 2048
  message_retention_seconds  = var.changed ? 60 : 86400
  receive_wait_time_seconds  = var.changed ? 0 : 10
  visibility_timeout_seconds = var.changed ? 0 : 120
  sqs_managed_sse_enabled    = var.changed

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.letters.arn
    maxReceiveCount     = var.changed ? 7 : 4
  })

  tags = var.changed ? { team = "shipping", "with/sign" = "a=b+c" } : { team = "sales", old = "yes" }
}

resource "aws_sqs_queue_redrive_allow_policy" "letters" {
  queue_url = aws_sqs_queue.letters.id
  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.orders.arn]
  })
}

data "aws_iam_policy_document" "orders" {
  statement {
    sid       = "send"
    effect    = "Allow"
    actions   = var.changed ? ["sqs:SendMessage"] : ["sqs:SendMessage", "sqs:GetQueueUrl"]
    resources = [aws_sqs_queue.orders.arn]

    principals {
      type        = "AWS"
      identifiers = [data.aws_caller_identity.current.account_id]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [aws_sns_topic.news.arn]
    }
  }
}

resource "aws_sqs_queue_policy" "orders" {
  queue_url = aws_sqs_queue.orders.id
  policy    = data.aws_iam_policy_document.orders.json
}

# Policies within the queue itself, and a name that Terraform makes.
resource "aws_sqs_queue" "secret" {
  name_prefix                       = "secret-"
  kms_master_key_id                 = var.changed ? null : "alias/aws/sqs"
  kms_data_key_reuse_period_seconds = var.changed ? 600 : 86400
  redrive_allow_policy              = jsonencode({ redrivePermission = var.changed ? "allowAll" : "denyAll" })

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "all"
      Effect    = "Allow"
      Principal = "*"
      Action    = "sqs:*"
      Resource  = "*"
    }]
  })
}

resource "aws_sqs_queue" "fifo_letters" {
  name       = "steps-letters.fifo"
  fifo_queue = true
}

resource "aws_sqs_queue" "fifo" {
  name                        = "steps.fifo"
  fifo_queue                  = true
  content_based_deduplication = !var.changed
  deduplication_scope         = "messageGroup"
  fifo_throughput_limit       = var.changed ? "perQueue" : "perMessageGroupId"
}

resource "aws_sqs_queue_redrive_policy" "fifo" {
  queue_url = aws_sqs_queue.fifo.id
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.fifo_letters.arn
    maxReceiveCount     = var.changed ? 2 : 3
  })
}

data "aws_sqs_queue" "orders" {
  name       = aws_sqs_queue.orders.name
  depends_on = [aws_sqs_queue_policy.orders]
}

data "aws_sqs_queues" "steps" {
  queue_name_prefix = "steps"
  depends_on        = [aws_sqs_queue.fifo, aws_sqs_queue.fifo_letters]
}

output "seen" {
  value = {
    account = data.aws_caller_identity.current.account_id
    arn     = data.aws_sqs_queue.orders.arn
    tags    = data.aws_sqs_queue.orders.tags
    steps   = length(data.aws_sqs_queues.steps.queue_urls)
  }
}
