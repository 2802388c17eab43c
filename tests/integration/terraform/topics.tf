resource "aws_sns_topic" "news" {
  name              = "news"
  display_name      = var.changed ? "" : "News"
  kms_master_key_id = var.changed ? null : "alias/aws/sns"
  signature_version = var.changed ? 1 : 2
  tracing_config    = var.changed ? "PassThrough" : "Active"

  delivery_policy = jsonencode({
    http = {
      defaultHealthyRetryPolicy = {
        minDelayTarget     = 20
        maxDelayTarget     = 20
        numRetries         = var.changed ? 5 : 3
        numMaxDelayRetries = 0
        numNoDelayRetries  = 0
        numMinDelayRetries = 0
        backoffFunction    = "linear"
      }
      disableSubscriptionOverrides = false
    }
  })

  sqs_success_feedback_role_arn    = var.changed ? null : "arn:aws:iam::000000000000:role/feedback"
  sqs_success_feedback_sample_rate = var.changed ? 50 : 100

  tags = var.changed ? { team = "shipping" } : { team = "sales", empty = "" }
}

resource "aws_sns_topic" "plain" {
  name_prefix = "plain-"
}

data "aws_iam_policy_document" "news" {
  statement {
    sid       = "publish"
    actions   = var.changed ? ["sns:Publish"] : ["sns:Publish", "sns:Subscribe"]
    resources = [aws_sns_topic.news.arn]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
  }
}

resource "aws_sns_topic_policy" "news" {
  arn    = aws_sns_topic.news.arn
  policy = data.aws_iam_policy_document.news.json
}

resource "aws_sns_topic_subscription" "orders" {
  topic_arn            = aws_sns_topic.news.arn
  protocol             = "sqs"
  endpoint             = aws_sqs_queue.orders.arn
  raw_message_delivery = !var.changed
  filter_policy_scope  = var.changed ? "MessageBody" : "MessageAttributes"
  filter_policy = var.changed ? jsonencode({ order = { price = [{ numeric = [">=", 100] }] } }) : jsonencode({
    kind = ["order", { prefix = "re" }]
  })
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.letters.arn })
}

resource "aws_sns_topic_subscription" "plain" {
  topic_arn      = aws_sns_topic.news.arn
  protocol       = "sqs"
  endpoint       = aws_sqs_queue.plain.arn
  filter_policy  = var.changed ? null : jsonencode({ kind = ["news"] })
  redrive_policy = var.changed ? null : jsonencode({ deadLetterTargetArn = aws_sqs_queue.letters.arn })
}

# Nobody is there who would confirm it.
resource "aws_sns_topic_subscription" "endpoint" {
  topic_arn       = aws_sns_topic.plain.arn
  protocol        = "http"
  endpoint        = "http://127.0.0.1:9/news"
  delivery_policy = jsonencode({ healthyRetryPolicy = { minDelayTarget = 5, maxDelayTarget = 50, numRetries = var.changed ? 4 : 5 } })
}

resource "aws_sns_topic" "fifo" {
  name                        = "steps.fifo"
  fifo_topic                  = true
  content_based_deduplication = !var.changed
  fifo_throughput_scope       = var.changed ? "Topic" : "MessageGroup"
}

resource "aws_sns_topic_subscription" "fifo" {
  topic_arn = aws_sns_topic.fifo.arn
  protocol  = "sqs"
  endpoint  = aws_sqs_queue.fifo.arn
}

data "aws_sns_topic" "news" {
  name       = aws_sns_topic.news.name
  depends_on = [aws_sns_topic.news]
}

output "topic" {
  value = data.aws_sns_topic.news.arn
}
